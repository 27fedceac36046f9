"""The map: which way is fastest on every op and case on record, by how much, and what it takes to write."""
