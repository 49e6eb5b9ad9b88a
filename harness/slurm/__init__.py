"""Slurm: the jobs of a workflow, the resources they ask for, and how ranks start and end in a job. No training."""
