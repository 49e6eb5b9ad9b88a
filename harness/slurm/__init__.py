"""Slurm: what runs ask of it, which of them share a job, how their ranks start and end. Nothing here trains."""
