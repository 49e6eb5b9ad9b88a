"""The cards of graphs: YAML files that say where a graph comes from and what its vertices have."""
