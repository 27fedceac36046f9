"""What the commands share: options, output files, exit statuses.

Imported by commands only; imports no stage and nothing that takes long."""
