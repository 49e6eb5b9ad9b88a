"""One rank of a run: opens the graph, trains, and sends its tables to rank 0, which writes the record."""
