"""Distributed operators that several strategies share: products, changes of layout, halo exchanges, losses."""
