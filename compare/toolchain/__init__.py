"""What compilers do: `pipeline` (every stage) and `aot` (programs without Python).

Each has a command and a renderer of its own.  Only `compare.cli` imports them."""
