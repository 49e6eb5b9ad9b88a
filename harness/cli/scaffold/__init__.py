"""New folders from templates: the package of a strategy, and a project for experiments."""
