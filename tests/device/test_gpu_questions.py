"""benchmarks/gpu.py on fake GPUs: every part works, a failing item costs its own row, and a second call goes on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Environment = dict[str, str]


def ask(environment: Environment, out: Path, *words: str, script: str = "benchmarks/gpu.py") -> str:
    """What a call prints, on the smallest graphs and one GPU."""
    command = [sys.executable, script, "--quick", "--out", str(out), *words]
    environment = {**environment, "FAKE_GPUS": "1", "ASKED": str(out / "asked")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows_of(out: Path, part: str) -> dict[str, list[list[str]]]:
    """The rows of a part by item, after asserting that no item failed."""
    lines = (out / "gpu.answers.part").read_text().splitlines()[1:]
    answers = [answer for line in lines if (answer := json.loads(line))["part"] == part]
    assert not [answer for answer in answers if answer["error"] and not answer["refused"]]
    return {answer["item"]: answer["rows"] for answer in answers}


def test_sampled_epochs_wait_and_full_graph_epochs_do_not(with_gpus: Environment, tmp_path: Path) -> None:
    ask(with_gpus, tmp_path, "waits", "--only", "serial", "plexus", "cagnet-3d", "distdgl")
    waits = rows_of(tmp_path, "waits")
    for name in ("serial", "plexus", "cagnet-3d"):
        assert waits[name] == [[name, "0", "", "1"]]
    ((_, counted, _, calls),) = waits["distdgl"]
    assert int(calls) == int(counted) + 1 > 1, "the ledger waits once after the epoch"


def test_measurements_print_a_row_for_each_item(with_gpus: Environment, tmp_path: Path) -> None:
    few = ["R-MAT float32 16", "uniform float32 128", "tiny-sbm 16", "1/64", "copy", "serial", "graphsage"]
    ask(with_gpus, tmp_path, "peaks", "products", "epochs", "samples", "strategies", "--only", *few)
    assert list(rows_of(tmp_path, "products")) == few[:2]
    for part, item in (
        ("epochs", few[2]),
        ("samples", few[3]),
        ("peaks", "copy"),
        ("strategies", "graphsage"),
    ):
        assert len(rows_of(tmp_path, part)[item]) == 1
    page = (tmp_path / "gpu.md").read_text()
    assert page.count("| uniform 2^8 | float32 | 128 |") == 1
    assert "R-MAT float32 64," in page


def test_pieces_are_refused_without_triton(with_gpus: Environment, tmp_path: Path) -> None:
    told = ask(with_gpus, tmp_path, "pieces", "--only", "6 float32 16", "8 bfloat16 256")
    assert len(rows_of(tmp_path, "pieces")) == 2
    assert told.count("refused: ") == 2


def test_draws_by_triton_are_refused_where_it_cannot_run(with_gpus: Environment, tmp_path: Path) -> None:
    ask(with_gpus, tmp_path, "basics", "--only", "sampled neighbours by Triton")
    assert rows_of(tmp_path, "basics") == {"sampled neighbours by Triton": []}
    assert "refused: " in (tmp_path / "gpu.md").read_text()


def test_fake_gpus_agree_with_their_own_rules_and_collectives_work(
    with_gpus: Environment, tmp_path: Path
) -> None:
    ask(with_gpus, tmp_path, "rules", "nccl")
    assert len(rows_of(tmp_path, "rules")) > 20
    assert {"all_reduce in bf16", "barrier"} <= rows_of(tmp_path, "nccl").keys()


def test_products_on_a_gpu_are_exact_but_for_one_rounding(with_gpus: Environment, tmp_path: Path) -> None:
    types = ("float64", "float32", "bfloat16")
    few = [f"inner products, {dtype}" for dtype in types]
    few += [f"sparse product, {dtype}, int32" for dtype in types]
    ask(with_gpus, tmp_path, "basics", "--only", *few)
    assert rows_of(tmp_path, "basics").keys() == set(few)


def test_ranks_that_share_a_gpu_pass_every_check(with_gpus: Environment, tmp_path: Path) -> None:
    """Up to four of them, whose messages go through the host: reductions, all-to-alls and messages to one member."""
    ask(with_gpus, tmp_path, "worlds", "--only", "g3")
    ((strategy, most, laws, broken),) = rows_of(tmp_path, "worlds")["g3"]
    assert (strategy, most, int(laws) > 100, broken) == ("g3", "4", True, "0")


def test_a_failing_item_costs_its_own_row_and_the_next_call_goes_on(
    with_gpus: Environment, tmp_path: Path
) -> None:
    planted = "tests/device/planted_part.py"
    ask(with_gpus, tmp_path, "--only", "first", "raises", script=planted)
    ask(with_gpus, tmp_path, script=planted)
    assert (tmp_path / "asked").read_text().split("\n") == [
        *("first", "raises", "refuses", "breaks a law", "hangs", "dies", "faults", "last", ""),
    ]
    page = (tmp_path / "gpu.md").read_text()
    for row in (
        "| first | begun / with a bar |  |",
        "| raises | begun / with a bar | RuntimeError: a plain error |",
        "| refuses | begun / with a bar | refused: this machine has no left hand |",
        "| breaks a law | begun / with a bar | equal to serial: 1 is not 2 |",
        "| hangs | begun / with a bar | still busy after 3 s |",
        "| dies | begun / with a bar | the process ended with exit code -6 |",
        "| faults | begun / with a bar | RuntimeError: CUDA error: an illegal memory access was encountered |",
        "| last | begun / with a bar |  |",
    ):
        assert row in page, page
    assert "planted: 2 of 8" in page
    log = (tmp_path / "gpu.log.part").read_text()
    assert "a plain error" in log, "tracebacks"
    assert "Timeout (0:00:01)!" in log, "the stack of the item that hangs"


def test_an_item_without_time_is_left_for_the_next_call(with_gpus: Environment, tmp_path: Path) -> None:
    words = ["--only", "hangs", "last", "--minutes", "0.02"]
    told = ask(with_gpus, tmp_path, *words, script="tests/device/planted_part.py")
    assert "8 items are left" in told
    assert "Not asked yet." in (tmp_path / "gpu.md").read_text()


@pytest.mark.parametrize("words", [["kitt"], ["kit", "--only", "plexsu"]])
def test_unknown_parts_and_items_are_refused(with_gpus: Environment, words: list[str]) -> None:
    command = [sys.executable, "benchmarks/gpu.py", *words]
    done = subprocess.run(command, cwd=ROOT, env=with_gpus, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert words[-1] in done.stderr and "there are" in done.stderr
