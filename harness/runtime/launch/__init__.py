"""Starts ranks, on this machine, by srun or in a pool; watches and ends them; and records how a run failed."""
