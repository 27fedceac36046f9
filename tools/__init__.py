"""What maintains the project; no part of the installed package."""
