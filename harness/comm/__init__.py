"""Grids of ranks, their axes, and the collectives on an axis.

Nothing is imported here: `harness.comm.layout` is plain arithmetic and is read by commands that must start
without torch.
"""
