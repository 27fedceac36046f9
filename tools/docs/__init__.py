"""What ``make docs`` runs: the generated parts of the documents.  Nothing in `compare` imports it."""
