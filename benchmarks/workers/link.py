"""What arrives on a link of a network namespace. Without imports of packages: every environment can read it."""

from pathlib import Path

LINK = "link0"
"""The link of an emulated host (benchmarks/testbed)."""


def read_received(link: str = LINK, process: int | str = "self") -> int:
    """Return the bytes that have arrived on a link of a process's network, with the headers of TCP."""
    lines = Path(f"/proc/{process}/net/dev").read_text().splitlines()
    line = next(line for line in lines if line.strip().startswith(f"{link}:"))
    return int(line.partition(":")[2].split()[0])
