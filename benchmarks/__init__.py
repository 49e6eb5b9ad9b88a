"""Benchmarks of the harness: `python -m benchmarks --list` names them, `python -m benchmarks NAME` runs one."""
