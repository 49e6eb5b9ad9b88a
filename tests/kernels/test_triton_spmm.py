"""Tests of the Triton kernels without a GPU: their results in Triton's interpreter, and their machine code."""

from pathlib import Path

import pytest

from tests.triton_processes import needs_triton, run_triton_tests

HERE = Path(__file__).parent
pytestmark = [needs_triton, pytest.mark.long]


def test_interpreted_kernels_pass_their_tests(tmp_path: Path) -> None:
    run_triton_tests(HERE / "interpreted_triton.py", tmp_path, interpret=True)


def test_kernels_compile_to_wide_loads_without_atomics(tmp_path: Path) -> None:
    run_triton_tests(HERE / "compiled_triton.py", tmp_path, interpret=False)
