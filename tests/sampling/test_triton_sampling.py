"""Tests of the Triton kernels that draw neighbours, without a GPU: their bits in the interpreter, and their code."""

from pathlib import Path

import pytest

from tests.triton_processes import needs_triton, run_triton_tests

HERE = Path(__file__).parent
pytestmark = [needs_triton, pytest.mark.long]


def test_interpreted_draws_equal_the_compiled_loops(tmp_path: Path) -> None:
    run_triton_tests(HERE / "interpreted_draws.py", tmp_path, interpret=True)


def test_kernels_of_draws_compile_for_other_gpus(tmp_path: Path) -> None:
    run_triton_tests(HERE / "compiled_draws.py", tmp_path, interpret=False)
