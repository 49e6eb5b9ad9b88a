"""The calibration of a CPU: its constants, and updates of existing or new machine cards."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import RunError, UserError
from harness.cli import main
from harness.prediction.calibration import calibrate, kernel_rates, spmm_rates
from harness.prediction.calibration.calibrate import Calibration, write_new_card
from harness.prediction.calibration.links import LinkMeasurement
from harness.runtime.provenance import describe_machine
from harness.spec.machine_card import MeasuredLink, load_machine_card

pytestmark = pytest.mark.long

CARD = """# What a person wrote.
description: mine
device: cpu
rates:       # old
  tflops: 3

  memory_gbs: 4
threads_per_rank: 1    # kept
links: {}
"""
SECTIONS: dict[str, Any] = {"memory_gb": 80.0}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one card, `mine`."""
    (tmp_path / "config" / "machines").mkdir(parents=True)
    (tmp_path / "datasets" / "catalog").mkdir(parents=True)
    (tmp_path / "config" / "machines" / "mine.yaml").write_text("# What a person wrote.\ndevice: cpu\n")
    monkeypatch.delenv("HARNESS_RESULTS", raising=False)
    return tmp_path


def test_it_writes_what_it_measured_and_keeps_the_rest(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spmm_rates, "SCALES", (6, 8))
    monkeypatch.setattr(kernel_rates, "SCALES", (6, 8))
    monkeypatch.setattr(spmm_rates, "WIDTHS", (1, 8))
    monkeypatch.setattr(kernel_rates, "KINDS", ("gcn", "sage"))
    monkeypatch.setattr(kernel_rates, "BATCHES", (16, 32))
    monkeypatch.setattr(kernel_rates, "LAYERS", ((64, 8, 8), (256, 16, 16)))
    monkeypatch.setattr(kernel_rates, "STREAMED", (1 << 10, 1 << 12))
    links = LinkMeasurement([MeasuredLink(before=1, size=2, gbs=1.5)], 200.0)
    monkeypatch.setattr(calibrate, "measure_links", lambda *_: links)
    told: list[str] = []
    done = calibrate.calibrate_machine(root, "mine", 2, told.append)
    assert told[0] == "measuring launches" and "measuring sparse products" in told
    path = root / "config" / "machines" / "mine.yaml"
    path.write_text(CARD)
    calibrate.write_sections(root, "mine", done.sections)
    text, card = path.read_text(), load_machine_card(root, "mine")
    assert text.startswith(
        "# What a person wrote.\ndescription: mine\ndevice: cpu\nthreads_per_rank: 1    # kept\n"
    )
    assert card.rates and card.links and card.links.cpu_gbs
    assert card.links.latency_us.value == 100
    assert card.links.cpu_gbs.value == 1.5
    assert card.rates.launch_us.value < 1e5
    assert card.rates.tflops.source.startswith("measured by harness doctor")
    assert card.rates.sample_ns.source.endswith("drawn by graphsage on the host")
    assert card.memory_gb is None
    assert card.measured_on == describe_machine("cpu")
    rows = list(csv.DictReader(done.table.splitlines()))
    assert sum(row["kernel"] == "sparse" for row in rows) == 2 * 2 * 2 * 2
    assert all(float(row["seconds"]) > 0 for row in rows)


CALIBRATION = f"""#!{sys.executable}
import os, sys
from harness.prediction.calibration import calibrate

def calibrated(root, machine, ranks, report, on_step):
    print("a library's greeting", flush=True)
    report("measuring launches")
    on_step(1, 3, "a kernel")
    if ranks == 1:
        raise calibrate.UserError("one rank has no links.")
    if ranks == 3:
        os.kill(os.getpid(), 9)
    settings = os.environ["MALLOC_TOP_PAD_"], os.environ["OMP_NUM_THREADS"]
    return calibrate.Calibration({{}}, [*settings, str(root), machine, str(ranks)], "", "this machine")

calibrate.calibrate_machine = calibrated
sys.argv[1:] = sys.argv[-3:]
calibrate.main()
"""


@pytest.fixture
def fake_calibration(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A calibration in a new process that measures nothing, by a card with settings."""
    (root / "config" / "machines" / "mine.yaml").write_text(
        "device: cpu\nthreads_per_rank: 1\nallocator: {MALLOC_TOP_PAD_: '4096'}\n"
    )
    program = tmp_path / "program.py"
    program.write_text(CALIBRATION)
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))


@pytest.mark.usefixtures("fake_calibration")
def test_a_calibration_starts_with_the_settings_of_the_card(root: Path) -> None:
    """What libraries print does not come between its reports."""
    told: list[Any] = []
    found = calibrate.calibrate_in_new_process(
        root, "mine", 2, told.append, lambda *step: told.append(list(step))
    )
    assert found == Calibration({}, ["4096", "1", str(root), "mine", "2"], "", "this machine")
    assert told == ["measuring launches", [1, 3, "a kernel"]]


@pytest.mark.usefixtures("fake_calibration")
@pytest.mark.parametrize(
    ("ranks", "error", "message"),
    [(1, UserError, "one rank has no links"), (3, RunError, "ended early: killed by SIGKILL")],
)
def test_a_calibration_that_fails_says_why(
    ranks: int, error: type[Exception], message: str, root: Path
) -> None:
    with pytest.raises(error, match=message):
        calibrate.calibrate_in_new_process(root, "mine", ranks, lambda _: None)


def test_too_few_ranks_are_refused_before_kernels_are_measured(root: Path) -> None:
    told: list[str] = []
    with pytest.raises(UserError, match="at least 2 ranks"):
        calibrate.calibrate_machine(root, "mine", 1, told.append)
    assert not told


def test_a_new_card_keeps_the_old_one_and_says_what_was_measured(root: Path) -> None:
    write_new_card(root, "mine", "h100", Calibration(SECTIONS, [], "", "NVIDIA H100"))
    card = load_machine_card(root, "h100")
    assert (card.device, card.memory_gb) == ("cpu", 80.0)
    assert card.description.startswith("NVIDIA H100, memory and links by harness doctor --calibrate, ")
    assert (root / "config" / "machines" / "mine.yaml").read_text() == "# What a person wrote.\ndevice: cpu\n"


def test_the_command_writes_a_new_card_and_all_times(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []

    def calibrated(_root: Path, _machine: str, ranks: int, *_: object) -> Calibration:
        asked.append(ranks)
        return Calibration(SECTIONS, ["copies left out: a reason"], "kernel,seconds\n", "NVIDIA H100")

    monkeypatch.setattr(calibrate, "calibrate_in_new_process", calibrated)
    command = ["doctor", "--calibrate", "--root", str(root), "--machine", "mine"]
    assert main([*command, "--write", "h100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == ["copies left out: a reason"]
    assert load_machine_card(root, "h100").memory_gb == 80.0
    assert (root / "results" / "calibrations" / "h100.csv").read_text() == "kernel,seconds\n"
    assert main([*command, "--ranks", "4"]) == 0
    assert "Copies left out: a reason." in capsys.readouterr().out
    assert load_machine_card(root, "mine").memory_gb == 80.0
    assert asked == [2, 4]


def test_a_wrong_name_is_refused_before_anything_is_measured(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibrate, "calibrate_in_new_process", None)
    command = ["doctor", "--calibrate", "--root", str(root), "--machine"]
    for words, refusal in (
        (["h100"], "harness doctor --calibrate --machine local-gpu --write h100"),
        (["mine", "--write", "mine"], "mine.yaml exists"),
        (["mine", "--write", "../h100"], "is not accepted"),
    ):
        assert main([*command, *words]) == 2
        assert refusal in capsys.readouterr().err
