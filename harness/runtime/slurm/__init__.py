"""Slurm: the jobs of a workflow, the resources that they request, and how ranks start and end in a job. No training."""
