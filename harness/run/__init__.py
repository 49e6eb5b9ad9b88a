"""One rank of a run: it opens the graph, trains, and sends its tables to rank 0, which writes the record."""
