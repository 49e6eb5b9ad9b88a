"""What defines a run: specs, plans of them, cards of machines, and where the project is."""
