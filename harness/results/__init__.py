"""Results: what a run leaves on disk, and the tables that are made of it. Nothing here trains or draws."""
