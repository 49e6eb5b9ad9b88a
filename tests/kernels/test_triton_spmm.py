"""Tests of the Triton kernels without a GPU: their results in Triton's interpreter, and their machine code.

Each file runs in a separate process, because Triton decides on import whether it interprets.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="the package triton is not installed"
)


def run_tests_of(name: str, folder: Path, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / name)],
        cwd=HERE.parents[1],
        env={**os.environ, "TRITON_CACHE_DIR": str(folder), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]


def test_interpreted_kernels_pass_their_tests(tmp_path: Path) -> None:
    run_tests_of("interpreted_triton.py", tmp_path, TRITON_INTERPRET="1")


def test_kernels_compile_to_wide_loads_without_atomics(tmp_path: Path) -> None:
    run_tests_of("compiled_triton.py", tmp_path, TRITON_INTERPRET="0")
