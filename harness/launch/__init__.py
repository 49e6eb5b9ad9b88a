"""Starts ranks: on this machine, or kept alive in a pool."""
