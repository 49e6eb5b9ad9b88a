"""Tests of the Triton kernels that induce submatrices, without a GPU: their bits in the interpreter, and their code."""

from pathlib import Path

import pytest

from tests.triton_processes import needs_triton, run_triton_tests

HERE = Path(__file__).parent
pytestmark = [needs_triton, pytest.mark.long]


def test_interpreted_submatrices_equal_those_of_compiled_loops(tmp_path: Path) -> None:
    run_triton_tests(HERE / "interpreted_induced.py", tmp_path, interpret=True)


def test_kernels_of_submatrices_compile_for_other_gpus(tmp_path: Path) -> None:
    run_triton_tests(HERE / "compiled_induced.py", tmp_path, interpret=False)
