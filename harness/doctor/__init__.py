"""The state of a machine: software, hardware and Slurm by a survey, and the speed of its links."""
