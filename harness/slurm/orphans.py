"""Jobs that a Snakemake of this folder submitted and did not live to see the end of.

The executor's jobs carry a prefix of ours in their names (profiles/slurm) and the folder they work in. Before the first
job of a workflow is submitted, whatever of these is there is an orphan: Snakemake's lock keeps others out.
"""

import subprocess
from pathlib import Path

PREFIX = "harness_"
PATIENCE = 60


def orphans(folder: Path) -> list[str]:
    """The numbers of such jobs; nothing where there is no Slurm."""
    command = ["squeue", "--me", "--noheader", "--format=%i|%j|%Z"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return []
    jobs = [line.split("|", 2) for line in asked.stdout.splitlines() if line.count("|") > 1]
    here = {str(folder), str(folder.resolve())}
    return [number for number, name, place in jobs if name.startswith(PREFIX) and place in here]
