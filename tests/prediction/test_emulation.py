"""The emulation of a run: its own kernels, calls and waits, on the links of a card; and the trace of that play."""

import json
import random
import re
import shutil
from math import fsum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.base.errors import UserError
from harness.cli import main
from harness.ledger import COMPUTING
from harness.prediction.emulation import build_trace, check_traceable, emulate, simulate_run, summarize_trace
from harness.results.collect import collect
from harness.results.record import read_record
from harness.spec.machine_card import MachineCard, load_machine_card
from harness.spec.plan import read_plan
from harness.spec.spec import Spec
from tests.results.test_mutations import with_a_wrong_value

ROOT = Path(__file__).parents[2]
ETHERNET = load_machine_card(ROOT, "ethernet")
pytestmark = [pytest.mark.long, pytest.mark.usefixtures("ranks_at_hand")]
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
        mine, theirs = tape[tape.rank_id == rank], last[last.rank_id == rank]
        assert fsum(mine.elements_received) == pytest.approx(fsum(theirs.elements_received), rel=1e-15)
        assert mine.calls.sum() == theirs.calls.sum()
        seconds = epochs[(epochs.rank_id == rank) & (epochs.epoch == epochs.epoch.max())].seconds.item()
        assert 0 < mine.cpu_seconds.sum() <= 1.2 * seconds + 0.01


def test_an_emulation_is_the_kernels_and_the_links(taped: Path) -> None:
    """On links that take no time the longest rank's own work is left; ten times slower links take ten times as long."""
    tape = read_record(taped).table("tape")
    work = tape.groupby("rank_id").cpu_seconds.sum().max()
    first, second = (emulate(taped, slower(ETHERNET, factor)).prediction for factor in (1e-9, 1e4))
    third = emulate(taped, slower(ETHERNET, 1e5)).prediction
    assert work <= first.seconds.value < second.seconds.value
    assert third.seconds.value / second.seconds.value == pytest.approx(10, rel=0.05)
    assert sum(first.entries.values()) == pytest.approx(first.seconds.value)
    assert second.limited_by == "links.node_gbs"


def test_emulated_run_has_the_source_emulated(taped: Path, tmp_path: Path) -> None:
    asked = ["runs", "emulate", str(taped), "--machine", "ethernet", "--out", str(tmp_path / "runs")]
    assert main(asked) == 0
    runs = collect(tmp_path / "runs", tmp_path / "tables").runs
    assert runs.source.tolist() == ["emulated"]
    assert runs["machine.name"].tolist() == ["ethernet"]


def test_all_runs_of_a_plan_are_emulated_each_on_its_own_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HARNESS_RESULTS", str(tmp_path))
    experiment, plan = tmp_path / "many.yaml", tmp_path / "plan.json"
    runs = "[{ strategy: [cagnet-1d, cagnet-sa-1d], dataset: tiny-sbm, ranks: 2, training: { epochs: 1 } }]"
    experiment.write_text(f"name: many\nruns: {runs}\nemulated: {{ machine: ethernet, runs: {runs} }}\n")
    assert main(["plan", "--experiment", str(experiment), "--scale", "emulated", "--out", str(plan)]) == 0
    first, second = read_plan(plan).runs_by_id.values()
    emulation = ["runs", "emulate", "--plan", str(plan), "--out", str(tmp_path / "emulated")]
    assert main(emulation) == 0
    assert not any((tmp_path / "emulated").iterdir()), "nothing has run yet, and the folder is there"
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(first["spec"]))
    assert main(["run", "--spec", str(spec), "--out", str(tmp_path / "runs")]) == 0
    capsys.readouterr()
    assert main([*emulation, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(each["run"], each["machine"]) for each in answer["emulated"]] == [(first["label"], "ethernet")]
    assert list(answer["refused"]) == [second["run_id"]]
    (made,) = (tmp_path / "emulated").iterdir()
    assert read_record(made).record["predicted"]["run"] == first["run_id"]


def test_a_run_without_a_tape_is_refused_with_the_way_out(tmp_path: Path) -> None:
    assert main([*RUN, "--out", str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    with pytest.raises(UserError, match=r"--set measure\.tape=true"):
        emulate(folder, ETHERNET)


# Traces.


@pytest.fixture(scope="module")
def overlapping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a tape, whose ranks leave calls and wait for them later."""
    runs = tmp_path_factory.mktemp("runs")
    asked = ["run", "--strategy", "g3", "--dataset", "tiny-sbm", "--ranks", "2", "--set", "training.epochs=1"]
    assert main([*asked, "--set", "measure.tape=true", "--out", str(runs)]) == 0
    (folder,) = runs.iterdir()
    return folder


def slices_of(document: dict[str, Any], rank: int) -> list[dict[str, Any]]:
    return [each for each in document["traceEvents"] if each["ph"] == "X" and each["pid"] == rank]


@pytest.mark.parametrize("run", ["taped", "overlapping"])
@pytest.mark.parametrize("factor", [1e-9, 1.0, 1e4])
def test_a_trace_is_valid_and_its_slices_fill_the_epoch(
    run: str, factor: float, request: pytest.FixtureRequest
) -> None:
    """By the Trace Event Format. Times are in microseconds, and are written to the nanosecond."""
    folder, card = request.getfixturevalue(run), slower(ETHERNET, factor)
    played = simulate_run(folder, card)
    document = json.loads(json.dumps(build_trace(played), allow_nan=False))
    tape = read_record(folder).table("tape")
    ranks = sorted(set(tape.rank_id))
    for each in document["traceEvents"]:
        assert each["ph"] in ("X", "M", "b", "e") and each["pid"] in ranks and each["tid"] == 0
        assert isinstance(each["name"], str) and each["name"]
        assert each["ph"] == "M" or each["ts"] >= 0
        assert ("dur" in each) == (each["ph"] == "X")
    titles = [each["args"]["name"] for each in document["traceEvents"] if each["name"] == "process_name"]
    assert [title.split(" (")[0] for title in titles] == [f"rank {rank}" for rank in ranks]
    ends = []
    for rank in ranks:
        end = 0.0
        for each in slices_of(document, rank):
            assert each["dur"] >= 0 and each["ts"] == pytest.approx(end, abs=1e-4)
            end = each["ts"] + each["dur"]
        assert sum(each["dur"] for each in slices_of(document, rank)) == pytest.approx(end, abs=1e-3)
        ends.append(end)
    assert max(ends) == pytest.approx(1e6 * emulate(folder, card).prediction.seconds.value, abs=0.01)
    assert document["otherData"]["epoch_seconds"] == pytest.approx(1e-6 * max(ends))
    assert "modelled, not measured" in document["otherData"]["layout"]


@pytest.mark.parametrize("run", ["taped", "overlapping"])
def test_a_trace_has_every_event_of_the_tape_with_its_seconds_and_words(
    run: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(run)
    tape = read_record(folder).table("tape")
    document = build_trace(simulate_run(folder, ETHERNET))
    for rank, rows in tape.groupby("rank_id"):
        slices = slices_of(document, rank)
        assert [each["args"]["event"] for each in slices] == sorted(each["args"]["event"] for each in slices)
        for row in rows.to_dict("records"):
            mine = [each for each in slices if each["args"]["event"] == row["event"]]
            for name in ("elements_payload", "elements_received", "bytes", "calls"):
                assert sum(each["args"].get(name, 0) for each in mine) == row[name]
            work = sum(each["dur"] for each in mine if each["cat"] != "waiting")
            assert work == pytest.approx(1e6 * row["cpu_seconds"], abs=0.01)
            for each in mine:
                assert each["args"]["phase"] == row["phase"] and each["args"]["op"] == row["op"]
                assert each["args"].get("layer", -1) == row["layer"]
                assert row["tensor"] in each["name"] and row["op"] in each["name"]


def test_calls_that_are_left_last_until_their_results_were_waited_for(overlapping: Path) -> None:
    tape = read_record(overlapping).table("tape")
    document = build_trace(simulate_run(overlapping, ETHERNET))
    left = tape[tape.leaves.astype(bool)]
    assert len(left) > 0
    pairs: dict[str, list[dict[str, Any]]] = {}
    for each in document["traceEvents"]:
        if each["ph"] in ("b", "e"):
            pairs.setdefault(each["id"], []).append(each)
    assert set(pairs) == {f"{row.rank_id}.{row.event}" for row in left[["rank_id", "event"]].itertuples()}
    for name, (first, last) in pairs.items():
        rank, number = map(int, name.split("."))
        assert (first["ph"], last["ph"], first["name"]) == ("b", "e", last["name"])
        assert first["ts"] <= last["ts"]
        (wait,) = tape[(tape.rank_id == rank) & (tape.waits_for == number)].event
        ended = max(
            each["ts"] + each["dur"] for each in slices_of(document, rank) if each["args"]["event"] == wait
        )
        assert last["ts"] == pytest.approx(ended, abs=1e-3)


def test_a_summary_adds_up_to_the_time_of_all_ranks(taped: Path) -> None:
    tape = read_record(taped).table("tape")
    shown = summarize_trace(simulate_run(taped, ETHERNET))
    assert sum(shown["shares"].values()) == pytest.approx(1)
    computing = tape[tape.op.isin(COMPUTING)].groupby("rank_id").cpu_seconds.sum()
    assert shown["imbalance"] == pytest.approx(computing.max() / computing.mean())
    assert shown["longest"] == computing.idxmax()
    assert sum(shown["kernels"].values()) == pytest.approx(computing.mean())
    assert sum(shown["exposed"].values()) == pytest.approx(
        shown["shares"]["waiting"] * shown["epoch_seconds"]
    )
    faster, slow = (
        summarize_trace(simulate_run(taped, slower(ETHERNET, factor)))["shares"]["waiting"]
        for factor in (1e-9, 1e5)
    )
    assert faster < slow < 1


@pytest.mark.parametrize("where", [[], ["--in-process"]])
def test_a_run_with_trace_leaves_the_file_and_prints_the_page(
    where: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One rank waits for nobody. A second request makes the trace of the run that there is."""
    asked = ["run", "--strategy", "serial", "--dataset", "tiny-sbm", "--set", "training.epochs=1", *where]
    for _ in range(2):
        assert main([*asked, "--trace", "--out", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        (folder,) = tmp_path.iterdir()
        assert str(folder / "trace.json") in out
        assert "waiting 0 %" in out and re.search(r"Imbalance +1\.00", out)
        document = json.loads((folder / "trace.json").read_text())
        assert {each["pid"] for each in document["traceEvents"]} == {0}
        (folder / "trace.json").unlink()
    assert (
        main(["runs", "emulate", str(folder), "--machine", "ethernet", "--trace", str(tmp_path / "t.json")])
        == 0
    )
    assert json.loads((tmp_path / "t.json").read_text())["otherData"]["card"] == "ethernet"


def test_a_run_that_diverged_has_no_trace(tmp_path: Path) -> None:
    asked = ["run", "--strategy", "serial", "--dataset", "tiny-sbm", "--set", "training.lr=1e30", "--trace"]
    assert main([*asked, "--out", str(tmp_path)]) == 1
    assert not list(tmp_path.glob("*/trace.json"))


def test_untraceable_run_is_refused_before_it_starts(taped: Path) -> None:
    spec = Spec.model_validate(read_record(taped).spec)
    with pytest.raises(UserError, match="links"):
        check_traceable(spec, ETHERNET.model_copy(update={"links": None}))
    on_gpus = spec.model_copy(update={"machine": spec.machine.model_copy(update={"device": "cuda"})})
    with pytest.raises(UserError, match="--trace"):
        check_traceable(on_gpus, ETHERNET)


def spoil_tape(folder: Path, rng: random.Random) -> None:
    """Puts a wrong value, of the right type, into one cell of the tape."""
    table = pq.read_table(folder / "tape.parquet")
    name, number = rng.choice(table.column_names), rng.randrange(table.num_rows)
    column = table[name].to_pylist()
    wrong: dict[type, list[Any]] = {
        bool: [not column[number]],
        int: [-1, 0, 10**6, -(2**60)],
        float: [-1.0, 1e300, float("nan"), float("inf")],
        str: ["", "x", "p+q"],
    }
    column[number] = rng.choice(wrong[type(column[number])])
    spoiled = pa.array(column, table.schema.field(name).type, from_pandas=False)
    place = table.column_names.index(name)
    pq.write_table(table.set_column(place, table.schema.field(name), spoiled), folder / "tape.parquet")


@pytest.mark.parametrize("number", [40, pytest.param(600, marks=pytest.mark.slow)])
def test_a_damaged_record_is_refused_by_name_whatever_is_wrong_in_it(
    number: int, taped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, refused = random.Random(number), 0
    for place in range(number):
        folder = Path(shutil.copytree(taped, tmp_path / f"{place:016x}"))
        if place % 3 == 2:
            spoil_tape(folder, rng)
        else:
            path = folder / ("spec.json" if place % 3 else "record.json")
            path.write_text(json.dumps(with_a_wrong_value(json.loads(path.read_text()), rng)))
        words = [] if place % 2 else ["--machine", "ethernet", "--trace", str(tmp_path / "trace.json")]
        code = main(["runs", "emulate", str(folder), *words])
        said = capsys.readouterr().err
        assert code in (0, 2), (folder, said)
        assert code == 0 or (said.startswith("harness: ") and said.count("\n") == 1), said
        refused += code == 2
    assert refused > number / 4


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"machine": None}, "machine = None"),
        ({"grid": {"p": 2}}, "3 ranks"),
        ({"model": {"kind": "x"}}, "model.kind = 'x'"),
        ({"new": 1}, "new"),
    ],
)
def test_a_spec_that_no_run_has_is_a_damaged_record(
    spec: dict[str, Any], why: str, taped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(taped, tmp_path / taped.name))
    whole = json.loads((folder / "spec.json").read_text())
    (folder / "spec.json").write_text(json.dumps({**whole, **spec}))
    assert main(["runs", "emulate", str(folder)]) == 2
    said = capsys.readouterr().err
    assert said.count(str(folder)) == 2 and why in said


def test_a_tape_that_does_not_fit_its_spec_is_a_damaged_record(
    taped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(taped, tmp_path / taped.name))
    table = pq.read_table(folder / "tape.parquet")
    renamed = pa.array(["q" if axis else "" for axis in table["axis"].to_pylist()])
    place = table.column_names.index("axis")
    pq.write_table(table.set_column(place, table.schema.field("axis"), renamed), folder / "tape.parquet")
    assert main(["runs", "emulate", str(folder), "--machine", "ethernet"]) == 2
    assert str(folder) in capsys.readouterr().err
