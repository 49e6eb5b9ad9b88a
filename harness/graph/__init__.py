"""Graphs: where they come from, the stores that hold them, and in memory their orders, partitions and normalisation.

`fetch` downloads files, `sources` reads and generates graphs, `store` keeps them in blocks. The modules beside these
packages hold graphs in memory: they open no files and start no processes.
"""
