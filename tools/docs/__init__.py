"""What ``make docs`` runs: the generated blocks of the documents.  Nothing in `compare` imports it."""
