"""Graphs: where they come from, the stores that hold them, and in memory their orders, partitions and normalisation.

`cards` describe graphs, `fetch` downloads their files, `sources` reads these, `generators` make graphs, `builders`
write stores, and `store` reads them. All other modules hold graphs in memory: they open no files and start no
processes.
"""
