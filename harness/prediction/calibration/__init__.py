"""Calibration: measures the kernels and links of this machine, and writes the constants to a machine card."""
