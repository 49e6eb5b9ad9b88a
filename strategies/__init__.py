"""The built-in strategies, found by their entry points as foreign ones are; one file or folder a system."""
