"""A run: ranks are started and watched, each trains and sends its tables to rank 0, and rank 0 writes the record.

`launch` starts ranks on this machine or by srun, `slurm` submits the jobs of a workflow. All other modules are the code
of one rank.
"""
