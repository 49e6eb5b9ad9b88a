"""Turns requests into specs: the spec of one run, or the specs of all runs that an experiment lists."""
