"""What every command shares: options that several take, and the files that they write.

Imported by commands only; imports no stage."""
