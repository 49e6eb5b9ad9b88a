"""Operators that several strategies share: products over axes, changes of layout, halos, the loss of split classes."""
