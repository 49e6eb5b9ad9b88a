"""Cheats of a contributor: each changes the folder of a real run and packs it with right checksums, and is found.

The numbers are those of the archives that an adversary made. What no check of one pack can find, the rules that compare
packs may (tests/results/test_ranking.py); docs/how-to/security.md lists what nothing finds.
"""

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness.report.pack.verification import BROKEN, HOLDS, UNKNOWN
from harness.results.consistency import find_contradiction
from harness.results.record import read_record
from harness.spec.spec import digest
from tests.pack.editing import (
    change_summary,
    change_table,
    find_run,
    read,
    verdicts_of,
    verify_unchecked,
)
from tests.synthetic_packs import change_record

pytestmark = pytest.mark.usefixtures("ranks_at_hand")


def tell(folder: Path, part: str, **values: Any) -> None:
    """Change values of a part of the record."""
    change_record(folder, lambda record: record[part].update(values))


def scale(
    folder: Path, table: str, factor: float, *columns: str, epochs: Sequence[int] | None = None
) -> None:
    """Multiply columns of a table, and let the summary agree with it."""

    def multiply(rows: pd.DataFrame) -> None:
        chosen = rows.epoch.isin(epochs) if epochs is not None else slice(None)
        for column in columns:
            rows.loc[chosen, column] = (rows.loc[chosen, column] * factor).astype(rows[column].dtype)

    change_table(folder, table, multiply)
    change_summary(folder)


def edit(folder: Path, table: str, column: str, value: Any, row: int | slice = slice(None)) -> None:
    """Write a value into a column of a table, and let the summary agree with it."""

    def write(rows: pd.DataFrame) -> None:
        rows.loc[rows.index[row], column] = value

    change_table(folder, table, write)
    change_summary(folder)


def halve_time(folder: Path) -> None:
    change_record(folder, lambda record: record["summary"].update(epoch_seconds_median=1e-3))


def halve_times_of_epochs(folder: Path) -> None:
    """The summary agrees with the epochs again, but the ledger does not."""

    def halve(epochs: pd.DataFrame) -> None:
        epochs["seconds"] /= 2

    change_table(folder, "epochs", halve)
    change_summary(folder)


def send_less(folder: Path) -> None:
    """The summary agrees with the ledger again, but the formula does not."""

    def divide(ledger: pd.DataFrame) -> None:
        for name in ("elements_payload", "elements_received"):
            ledger[name] //= 2

    change_table(folder, "ledger", divide)
    change_summary(folder)


def name_another_spec(folder: Path) -> None:
    spec = read(folder / "spec.json")
    spec["model"]["hidden"] *= 2
    (folder / "spec.json").write_text(json.dumps(spec))


def drop_a_rank(folder: Path) -> None:
    change_table(folder, "ledger", lambda ledger: ledger[ledger["rank_id"] == 0])
    change_table(folder, "epochs", lambda epochs: epochs[epochs["rank_id"] == 0])
    change_summary(folder)


def drop_an_epoch(folder: Path) -> None:
    """The slowest epoch is left out, and the summary agrees with the others."""
    for name in ("ledger", "epochs", "accuracy"):
        change_table(folder, name, lambda table: table[table.epoch != 1])
    change_summary(folder)


def name_a_distant_epoch(folder: Path) -> None:
    """To list all epochs before it would take more memory than there is."""

    def rename(epochs: pd.DataFrame) -> None:
        epochs.loc[epochs.epoch == 1, "epoch"] = 1 << 62

    change_table(folder, "epochs", rename)


def hide_machine(folder: Path) -> None:
    change_record(folder, lambda record: record["provenance"].update(cpu="", versions={}))


def tell_a_secret(folder: Path) -> None:
    change_record(folder, lambda record: record["provenance"].update(command="harness run --api-key=abc"))


def write_text_for_number(folder: Path) -> None:
    change_record(folder, lambda record: record["summary"].update(final_loss="small"))


def write_impossible_key(folder: Path) -> None:
    def rename(ledger: pd.DataFrame) -> None:
        ledger["tensor"] = "<script>"

    change_table(folder, "ledger", rename)


def truncate_table(folder: Path) -> None:
    path = folder / "ledger.parquet"
    path.write_bytes(path.read_bytes()[:100])


def hide_manifest(folder: Path) -> None:
    """A graph of which nobody knows the files, so that its elements cannot be looked up."""
    tell(folder, "provenance", store_manifest="0" * 64)
    scale(folder, "ledger", 0.01, "elements_payload", "elements_received")


def add_rows_that_cancel(folder: Path) -> None:
    def add(ledger: pd.DataFrame) -> pd.DataFrame:
        two = pd.concat([ledger.iloc[:1], ledger.iloc[:1]]).assign(
            seconds=[-5.0, 5.0], calls=0, elements_payload=0.0, elements_received=0.0, bytes=0
        )
        return pd.concat([ledger, two], ignore_index=True)

    change_table(folder, "ledger", add)


def empty_all_epochs_but_the_last(folder: Path) -> None:
    scale(folder, "ledger", 0, "elements_payload", "elements_received", "bytes", epochs=[-1, 0])


def shrink_graph(folder: Path) -> None:
    sizes = read(folder / "record.json")["summary"]["graph"]
    tell(folder, "summary", graph={name: size // 2 for name, size in sizes.items()})


def take_a_name_that_looks_alike(folder: Path) -> None:
    spec = read(folder / "spec.json")
    spec["strategy"] = {"name": "\u0440lexus", "params": {}}
    (folder / "spec.json").write_text(json.dumps(spec))
    change_record(folder, lambda record: record.update(run_id=digest(spec)))
    folder.rename(folder.parent / digest(spec))


def end_at_once(folder: Path) -> None:
    """Epochs of 2 ns, in a ledger of none."""
    scale(folder, "ledger", 0, "seconds")
    edit(folder, "epochs", "seconds", 2e-9)


ELEMENTS = ("elements_payload", "elements_received")
CHEATS: dict[str, tuple[Callable[[Path], None], str]] = {
    "half the median": (halve_time, "summary"),
    "half of each epoch": (halve_times_of_epochs, "ledger"),
    "half the elements": (send_less, "elements"),
    "another spec": (name_another_spec, "id"),
    "no rank 1": (drop_a_rank, "epochs"),
    "no epoch 1": (drop_an_epoch, "epochs"),
    "a distant epoch": (name_a_distant_epoch, "epochs"),
    "no machine": (hide_machine, "environment"),
    "a secret": (tell_a_secret, "privacy"),
    "text for a number": (write_text_for_number, "record"),
    "an impossible tensor": (write_impossible_key, "elements"),
    "half a table": (truncate_table, "record"),
    "03 an accuracy of no vertices": (
        partial(edit, table="accuracy", column="accuracy", value=0.1234567),
        "accuracy",
    ),
    "04 an accuracy of 7": (partial(edit, table="accuracy", column="accuracy", value=7.0), "amounts"),
    "05 bytes / 1000": (lambda run: scale(run, "ledger", 1e-3, "bytes"), "amounts"),
    "05 bytes / 2": (lambda run: scale(run, "ledger", 0.5, "bytes"), "elements"),
    "06 received / 100": (lambda run: scale(run, "ledger", 0.01, "elements_received"), "amounts"),
    "07 another manifest": (hide_manifest, "elements"),
    "08 memory / 1000": (
        lambda run: scale(run, "memory", 1e-3, "host_peak_bytes", "persistent_bytes"),
        "memory",
    ),
    "08 peaks / 1000": (lambda run: scale(run, "memory", 1e-3, "host_peak_bytes"), "amounts"),
    "13 in the year 8941": (
        lambda run: tell(run, "provenance", started=220_000_000_000.0, finished=220_000_000_060.0),
        "times",
    ),
    "14 a run of no time": (
        lambda run: tell(run, "provenance", started=time.time() - 100, finished=time.time() - 100),
        "times",
    ),
    "15 half the graph": (shrink_graph, "graph"),
    "23 a target at once": (partial(edit, table="accuracy", column="train_seconds", value=1e-6), "times"),
    "25 nothing before the last epoch": (empty_all_epochs_but_the_last, "elements"),
    "26 seconds that cancel": (add_rows_that_cancel, "times"),
    "34 epochs of 2 ns": (end_at_once, "times"),
    "38 a commit that git looks up": (lambda run: tell(run, "provenance", commit="HEAD~1"), "amounts"),
    "an end before the start": (lambda run: tell(run, "provenance", finished=1.0, started=2.0), "times"),
    "ranks of different losses": (partial(edit, table="epochs", column="loss", value=0.5, row=0), "amounts"),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_is_found(cheat: str, copied: Path, tmp_path: Path) -> None:
    run, (change, check) = find_run(copied, "cagnet-2d"), CHEATS[cheat]
    change(run)
    found = verify_unchecked(copied, tmp_path)
    assert not found.holds
    assert verdicts_of(found, run.name)[check] == BROKEN
    others = [each.name for each in copied.iterdir() if each != run]
    assert all(BROKEN not in verdicts_of(found, each).values() for each in others)


ALONE = [
    name
    for name, (_, check) in CHEATS.items()
    if check in ("summary", "epochs", "ledger", "times", "amounts")
]


@pytest.mark.parametrize("cheat", ALONE)
def test_a_record_that_contradicts_itself_is_found_without_a_pack(cheat: str, copied: Path) -> None:
    run = find_run(copied, "cagnet-2d")
    assert not find_contradiction(read_record(run).read_tables())
    CHEATS[cheat][0](run)
    assert find_contradiction(read_record(run).read_tables())


def test_a_sampler_that_sends_less_in_one_epoch_is_found(copied: Path, tmp_path: Path) -> None:
    """Its epochs differ, so each is compared with the formula of its own samples."""
    run = find_run(copied, "graphsage")
    scale(run, "ledger", 0.5, *ELEMENTS, "bytes", epochs=[0])
    assert verdicts_of(verify_unchecked(copied, tmp_path), run.name)["elements"] == BROKEN


def test_names_of_several_alphabets_are_found(copied: Path, tmp_path: Path) -> None:
    take_a_name_that_looks_alike(find_run(copied, "cagnet-2d"))
    found = verify_unchecked(copied, tmp_path)
    (run,) = found.broken_runs
    verdicts = verdicts_of(found, run)
    assert verdicts["names"] == BROKEN and verdicts["elements"] == UNKNOWN


def test_unknown_commit_is_reported(copied: Path, tmp_path: Path) -> None:
    """A repository of others may have it, so it is no contradiction."""
    run = find_run(copied, "cagnet-2d")
    tell(run, "provenance", commit="deadbeef" * 5)
    verdicts = verdicts_of(verify_unchecked(copied, tmp_path), run.name)
    assert verdicts["environment"] == UNKNOWN and verdicts["amounts"] == HOLDS


def test_the_same_graph_with_other_files_is_verified(copied: Path, tmp_path: Path) -> None:
    """A manifest also has the sizes of blocks, on which no element depends."""
    run = find_run(copied, "cagnet-2d")
    tell(run, "provenance", store_manifest="0" * 64)
    verdicts = verdicts_of(verify_unchecked(copied, tmp_path), run.name)
    assert verdicts["elements"] == verdicts["memory"] == verdicts["accuracy"] == HOLDS
