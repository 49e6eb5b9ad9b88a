"""A Snakemake of its own for tests that kill it: in a session of its own, with nothing of the test's environment."""

import os
import subprocess
import sys
from pathlib import Path


def start(root: Path, *words: str) -> subprocess.Popen[bytes]:
    """In this project folder; what it says is appended to the file `output` there."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HARNESS_")}
    with (root / "output").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", *words],
            cwd=root,
            env=environment | {"HARNESS_ROOT": str(root), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
