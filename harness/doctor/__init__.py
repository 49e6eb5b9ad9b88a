"""What a machine can run, what is missing, and how fast its links are. Looking imports no torch."""
