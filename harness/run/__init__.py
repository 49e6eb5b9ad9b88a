"""One rank of a run: opens its graph, trains, and says what it did; rank 0 writes the record."""
