"""Sampling systems, each composed of a sampler, a graph placement and a feature placement."""
