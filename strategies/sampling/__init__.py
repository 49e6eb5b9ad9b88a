"""Systems that sample: mini-batches of a sampler, a placement of the graph, and a store of features."""
