"""A `Comparison` as a screen, Markdown, CSV, and the tables in the project's own documents."""
