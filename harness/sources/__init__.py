"""Readers of graph files, by format. A reader takes a path and hands over a `RawGraph`; it fetches nothing."""
