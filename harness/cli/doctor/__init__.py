"""The state of a machine: what its software, GPUs, folders and Slurm lack, and a test of its GPUs."""
