"""Grids of ranks, their axes, and the collectives on an axis.

This file imports nothing: `harness.comm.layout` is plain arithmetic, read by commands that must start without torch.
"""
