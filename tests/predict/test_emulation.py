"""The emulation of a run: its own kernels, calls and waits, on the links of a card."""

from pathlib import Path

import pytest

from harness.cli import main
from harness.errors import UserError
from harness.predict.emulation import emulate
from harness.results.collect import collect
from harness.results.record import read_record
from harness.spec.machine_card import MachineCard, load_machine_card

ROOT = Path(__file__).parents[2]
ETHERNET = load_machine_card(ROOT, "ethernet")
RUN = [
    "run",
    "--strategy",
    "cagnet-sa-1d",
    "--dataset",
    "tiny-sbm",
    "--ranks",
    "3",
    "--set",
    "training.epochs=2",
]


@pytest.fixture(scope="module")
def taped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a tape."""
    runs = tmp_path_factory.mktemp("runs")
    assert main([*RUN, "--set", "measure.tape=true", "--out", str(runs)]) == 0
    (folder,) = runs.iterdir()
    return folder


def slower(card: MachineCard, factor: float) -> MachineCard:
    assert card.links
    rate = card.links.node_gbs.model_copy(update={"value": card.links.node_gbs.value / factor})
    return card.model_copy(update={"links": card.links.model_copy(update={"node_gbs": rate})})


def test_a_tape_has_the_words_and_the_processor_seconds_of_its_epoch(taped: Path) -> None:
    record = read_record(taped)
    tape, ledger, epochs = record.table("tape"), record.table("ledger"), record.table("epochs")
    last = ledger[ledger.epoch == epochs.epoch.max()]
    for rank in range(3):
        mine, theirs = tape[tape["rank"] == rank], last[last["rank"] == rank]
        assert mine.words_received.sum() == theirs.words_received.sum()
        assert mine.calls.sum() == theirs.calls.sum()
        seconds = epochs[(epochs["rank"] == rank) & (epochs.epoch == epochs.epoch.max())].seconds.item()
        assert 0 < mine.cpu_seconds.sum() <= 1.2 * seconds + 0.01


def test_an_emulation_is_the_kernels_and_the_links(taped: Path) -> None:
    """On links that take no time the longest rank's own work is left; ten times slower links take ten times as long."""
    tape = read_record(taped).table("tape")
    work = tape.groupby("rank").cpu_seconds.sum().max()
    first, second = (emulate(taped, slower(ETHERNET, factor)).prediction for factor in (1e-9, 1e4))
    third = emulate(taped, slower(ETHERNET, 1e5)).prediction
    assert work <= first.seconds.value < second.seconds.value
    assert third.seconds.value / second.seconds.value == pytest.approx(10, rel=0.05)
    assert sum(first.entries.values()) == pytest.approx(first.seconds.value)
    assert second.limited_by == "links.node_gbs"


def test_it_is_a_record_of_its_own_source(
    taped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["emulate", str(taped), "--machine", "ethernet", "--out", str(tmp_path / "runs")]
    assert main(asked) == 0
    assert "measured kernels on the links of ethernet" in capsys.readouterr().out
    runs = collect(tmp_path / "runs", tmp_path / "tables").runs
    assert runs.source.tolist() == ["emulated"]
    assert runs["machine.name"].tolist() == ["ethernet"]


def test_a_run_without_a_tape_is_refused_with_the_way_out(tmp_path: Path) -> None:
    assert main([*RUN, "--out", str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    with pytest.raises(UserError, match=r"--set measure\.tape=true"):
        emulate(folder, ETHERNET)
