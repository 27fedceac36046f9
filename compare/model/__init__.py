"""The vocabulary of the project as frozen data: what authors write, and what a run yields."""
