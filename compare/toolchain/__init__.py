"""What compilers do: `pipeline` (every stage), `aot` (programs without Python), `caches` (what is on disk).

Each has a command and a renderer of its own.  Only `compare.cli` imports them."""
