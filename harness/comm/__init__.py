"""Grids of ranks, their axes, and the collectives on an axis.

This module has no imports, so that commands can import `harness.comm.layout` without importing torch.
"""
