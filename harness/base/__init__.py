"""Errors, files, processes, text and numbers: what every room uses. Nothing here knows of graphs or of training."""
