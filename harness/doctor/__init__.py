"""The state of a machine: what it can run, what is missing, and how fast its links are. The survey imports no torch."""
