"""Systems that sample, each composed of a sampler, a placement of the graph and a placement of the features."""
