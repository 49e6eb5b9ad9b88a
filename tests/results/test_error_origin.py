"""A failed run names the file, the line and the package in which its error began."""

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from harness.kernels.csr import from_coo
from harness.kernels.spmm import spmm
from harness.results.collect import error_origin
from harness.validation import check_name

ROOT = Path(__file__).parents[2]


def multiply_with_wrong_shape() -> None:
    A = from_coo(torch.tensor([0]), torch.tensor([0]), torch.ones(1), (2, 2))
    spmm(A, torch.ones(3, 1))


def check_a_bad_name() -> None:
    check_name("a/b")


@pytest.mark.parametrize(
    ("fail", "file", "package"),
    [
        (multiply_with_wrong_shape, "harness/kernels/", " (kernels)"),
        (check_a_bad_name, "harness/validation.py", ""),
    ],
)
def test_the_origin_is_the_innermost_frame_of_the_project(
    fail: Callable[[], None], file: str, package: str
) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - any error of torch or of Python
        fail()
    origin = error_origin("".join(traceback.format_exception(raised.value)))
    assert origin.startswith(file) and origin.endswith(package)
    path, _, rest = origin.partition(", line ")
    number = int(rest.split()[0])
    assert 1 <= number <= len((ROOT / path).read_text().splitlines())


def test_a_strategy_of_a_folder_names_its_folder() -> None:
    frames = ("harness/run/rank.py", 9), ("strategies/g3/bins.py", 7)
    trace = "".join(f'  File "/x/{file}", line {line}, in run\n' for file, line in frames)
    assert error_origin(trace) == "strategies/g3/bins.py, line 7 (strategies.g3)"


@pytest.mark.parametrize(
    "trace", ["", "Killed\n", 'File "/home/me/mine.py", line 3, in f\n', 'File "\n", line 3, in f']
)
def test_a_trace_without_a_frame_of_the_project_has_no_origin(trace: str) -> None:
    assert error_origin(trace) == ""
