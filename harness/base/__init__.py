"""Errors, files, processes, text and numbers: what every package uses. Nothing here knows of graphs or of training."""
