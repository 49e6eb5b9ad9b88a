"""Turns requests into specs: of one run, of the runs of an experiment, and of runs that other programs made.

`workflow` is behind the rules of workflows/, `external` records the runs of other programs.
"""
