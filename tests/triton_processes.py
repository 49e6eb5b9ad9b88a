"""Run a file of tests of Triton kernels in a separate process, because Triton decides on import if it interprets."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="the package triton is not installed"
)


def run_triton_tests(path: Path, folder: Path, *, interpret: bool) -> None:
    """Run the tests in a file, and assert that they pass. `folder` is for compiled kernels."""
    environment = {"TRITON_CACHE_DIR": str(folder), "TRITON_INTERPRET": str(int(interpret))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
