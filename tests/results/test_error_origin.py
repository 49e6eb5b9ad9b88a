"""A failed run names the file, the line and the package in which its error began."""

import json
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness.base.validation import check_name
from harness.kernels.csr import from_coo
from harness.kernels.spmm import spmm
from harness.results.collect import collect
from harness.results.error_origin import find_error_origin
from harness.results.run_row import make_rows
from harness.results.schema import TABLES

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
        (check_a_bad_name, "harness/base/validation.py", ""),
    ],
)
def test_the_origin_is_the_innermost_frame_of_the_project(
    fail: Callable[[], None], file: str, package: str
) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - any error of torch or of Python
        fail()
    origin = find_error_origin("".join(traceback.format_exception(raised.value)))
    assert origin.startswith(file) and origin.endswith(package)
    path, _, rest = origin.partition(", line ")
    number = int(rest.split()[0])
    assert 1 <= number <= len((ROOT / path).read_text().splitlines())


def test_a_strategy_of_a_folder_names_its_folder() -> None:
    frames = ("harness/runtime/rank.py", 9), ("strategies/g3/bins.py", 7)
    trace = "".join(f'  File "/x/{file}", line {line}, in run\n' for file, line in frames)
    assert find_error_origin(trace) == "strategies/g3/bins.py, line 7 (strategies.g3)"


@pytest.mark.parametrize(
    ("inner", "origin"),
    [
        ([], "mine/strategy.py, line 42 (mine)"),
        (
            ["harness/comm/axis.py"],
            "mine/strategy.py, line 42 (mine), in a call of harness/comm/axis.py, line 9",
        ),
        (["lib/python3.11/site-packages/torch/nn/f.py"], "mine/strategy.py, line 42 (mine)"),
    ],
)
def test_a_plugin_is_named_before_what_it_called(inner: list[str], origin: str) -> None:
    """The script that starts a run is not mistaken for a plugin, because the harness does not call it."""
    outer = [("home/me/script.py", 1), ("harness/runtime/rank.py", 9), ("home/me/mine/strategy.py", 42)]
    frames = [*outer, *((file, 9) for file in inner)]
    trace = "".join(f'  File "/{file}", line {line}, in run\n' for file, line in frames)
    assert find_error_origin(trace) == origin


@pytest.mark.parametrize(
    "trace", ["", "Killed\n", 'File "/home/me/mine.py", line 3, in f\n', 'File "\n", line 3, in f']
)
def test_a_trace_without_a_frame_of_the_project_has_no_origin(trace: str) -> None:
    assert find_error_origin(trace) == ""


def test_collected_runs_have_the_origin_of_their_errors(synthetic: SimpleNamespace, tmp_path: Path) -> None:
    frame = '  File "/x/harness/comm/axis.py", line 7, in send'
    specs = [synthetic.make_spec("serial", "tiny", {"p": 1}, seed=seed) for seed in range(3)]
    synthetic.write_ok(tmp_path / "runs", specs[0], 1.0)
    for spec, trace in zip(specs[1:], (frame, "Killed"), strict=True):
        folder = synthetic.write_failed(tmp_path / "runs", spec, "failed", "ValueError", "no")
        record = json.loads((folder / "record.json").read_text())
        record["error"] |= {"trace": trace, "origin": "what a record says has no say"}
        (folder / "record.json").write_text(json.dumps(record))
    failures = collect(tmp_path / "runs", tmp_path / "tables").failures.set_index("run_id")
    found = [failures.began_in.get(spec.run_id) for spec in specs]
    assert found == [None, "harness/comm/axis.py, line 7 (comm)", ""]


def test_a_computed_value_is_null_if_an_input_is(synthetic: SimpleNamespace) -> None:
    spec = synthetic.make_spec("serial", "tiny", {"p": 1}).model_dump(mode="json")
    record = {"run_id": "1", "label": "", "status": "failed", "summary": {}, "provenance": {}, "error": None}
    failure = make_rows(spec, record).failure
    assert failure is not None and failure["began_in"] is None


def test_computed_columns_depend_on_stored_columns_of_their_table() -> None:
    for table in TABLES.values():
        computed = {column.name for column in table.columns if column.compute}
        for column in table.columns:
            assert set(column.inputs) <= set(table.names) - computed
