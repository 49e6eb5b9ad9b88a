"""The state of a machine: software, hardware and Slurm by a survey without torch, and the speed of its links."""
