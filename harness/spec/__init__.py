"""The definition of a run: specs, plans, machine cards, and the project root."""
