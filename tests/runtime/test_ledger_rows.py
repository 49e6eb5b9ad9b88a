"""The ledger of a long run: small in memory, and the same record as from one row after the other."""

import pickle
import tracemalloc
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from random import Random

import pandas as pd
import pytest
import torch

from harness.ledger import Amounts, AxisName, Direction, Key, Op, Phase, TensorName
from harness.results.parquet import columns_to_arrow, serialize_table, to_arrow
from harness.results.schema import RUN_TABLES
from harness.runtime import recording
from harness.runtime.ledger_rows import LedgerRows, key_to_row
from harness.runtime.rank_tables import (
    ENUMS,
    Journal,
    RankTables,
    _TablesReader,
    _TablesWriter,
    read_unfinished_tables,
)
from harness.runtime.trainer import Epoch
from harness.strategy.models import SplitAccuracy

KEYS = [
    Key(Phase.CONVOLVE, 0, Direction.FORWARD, Op.SPMM, tensor=TensorName.T),
    Key(Phase.CONVOLVE, 1, Direction.BACKWARD, Op.ALL_REDUCE, AxisName.P, tensor=TensorName.DW),
    Key(Phase.FETCH, 1, Direction.FORWARD, Op.RECV, "x+y", 3, TensorName.H),
    Key(Phase.OTHER, -1, Direction.FORWARD),
]
Entries = Mapping[Key, Amounts]
BYTES_PER_ROW = 96
"""Ten columns of 64 bits, and the spare room of arrays that grow."""


def make_entries(random: Random) -> Entries:
    """The entries of an epoch, under keys that change from epoch to epoch."""
    return {
        key: Amounts(random.randrange(9), random.random(), random.random(), 4, random.random(), 0.5, 7, 8)
        for key in random.sample(KEYS, random.randrange(1, len(KEYS) + 1))
    }


def make_tables(rank: int, epochs: Mapping[int, Entries]) -> RankTables:
    tables = RankTables(rank)
    for number, entries in epochs.items():
        tables.add_epoch(number, Epoch(1.0, torch.ones(1), dict(entries), 0.0, []), [])
    return tables


def file_of(frame: pd.DataFrame) -> bytes:
    return serialize_table(to_arrow(frame, RUN_TABLES["ledger"]), RUN_TABLES["ledger"])


def file_of_ranks(ranks: list[RankTables]) -> bytes:
    columns = recording.make_tables(ranks)["ledger"]
    return serialize_table(columns_to_arrow(columns, RUN_TABLES["ledger"]), RUN_TABLES["ledger"])


def file_row_by_row(ranks: Mapping[int, Mapping[int, Entries]]) -> bytes:
    """The file of a ledger that is made of one dict for each row."""
    rows = [
        {"epoch": epoch, "rank_id": rank, **key_to_row(key), **asdict(amounts)}
        for rank, epochs in ranks.items()
        for epoch, entries in epochs.items()
        for key, amounts in entries.items()
    ]
    return file_of(pd.DataFrame(rows))


@pytest.fixture
def ranks() -> dict[int, dict[int, Entries]]:
    random = Random(1)
    return {rank: {epoch: make_entries(random) for epoch in range(-2, 30)} for rank in range(3)}


def test_file_of_ledger_has_the_bytes_of_one_made_row_by_row(ranks: dict[int, dict[int, Entries]]) -> None:
    tables = [make_tables(rank, epochs) for rank, epochs in ranks.items()]
    assert file_of_ranks(tables) == file_row_by_row(ranks)
    assert pickle.loads(pickle.dumps(tables)) == tables


@pytest.mark.parametrize("by_name", [False, True])
def test_tables_are_read_whatever_way_python_pickles_members_of_enums(
    ranks: dict[int, dict[int, Entries]], by_name: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11.0 to 3.11.3 pickle a member as a call of getattr with its class and its name."""
    if by_name:
        for kind in ENUMS:
            monkeypatch.setattr(kind, "__reduce_ex__", lambda self, _: (getattr, (type(self), self._name_)))
        assert b"getattr" in pickle.dumps(Op.SPMM)
    tables, file = [make_tables(rank, epochs) for rank, epochs in ranks.items()], BytesIO()
    _TablesWriter(file).dump(tables)
    assert _TablesReader(BytesIO(file.getvalue())).load() == tables


def test_journal_gives_back_the_ledger_of_the_epochs_that_all_ranks_finished(
    ranks: dict[int, dict[int, Entries]], tmp_path: Path
) -> None:
    for rank, epochs in ranks.items():
        tables = RankTables(rank)
        journal = Journal(tmp_path, tables)
        for number, entries in list(epochs.items())[: 20 + rank]:
            tables.add_epoch(number, Epoch(1.0, torch.ones(1), dict(entries), 0.0, []), [])
            journal.write()
    finished = {rank: dict(list(epochs.items())[:20]) for rank, epochs in ranks.items()}
    assert file_of_ranks(read_unfinished_tables(tmp_path, 3)) == file_row_by_row(finished)


def test_epoch_in_which_a_rank_sent_most_is_found(ranks: dict[int, dict[int, Entries]]) -> None:
    epochs = {epoch: entries for epoch, entries in ranks[0].items() if epoch >= 0}
    sent = {epoch: sum(a.elements_payload for a in entries.values()) for epoch, entries in epochs.items()}
    assert make_tables(0, ranks[0]).epoch_with_most_words() == max(sent, key=sent.__getitem__)
    assert RankTables(0).epoch_with_most_words() == 0


def test_run_without_ranks_has_no_ledger() -> None:
    for ranks in ([], [RankTables(0)]):
        assert columns_to_arrow(recording.make_tables(ranks)["ledger"], RUN_TABLES["ledger"]).num_rows == 0


def test_each_epoch_takes_as_many_bytes_as_its_rows_need() -> None:
    random, rows, epochs = Random(2), LedgerRows(), 3000
    tracemalloc.start()
    try:
        for number in range(epochs):
            rows.add_epoch(number, make_entries(random))
        assert tracemalloc.get_traced_memory()[0] < BYTES_PER_ROW * len(rows)
        pickled = pickle.dumps(rows)
    finally:
        tracemalloc.stop()
    assert len(pickled) < BYTES_PER_ROW * len(rows)


class CountedEpochs(list[dict[str, object]]):
    """Rows of epochs that count how often they are gone through."""

    readings = 0

    def __iter__(self) -> Iterator[dict[str, object]]:
        self.readings += 1
        return super().__iter__()


def test_evaluation_after_every_epoch_reads_no_earlier_epoch_again() -> None:
    tables, seconds = RankTables(0, CountedEpochs()), [1.0, 0.5, 0.25, 4.0]
    for number, taken in enumerate(seconds, start=-1):
        tables.add_epoch(number, Epoch(taken, torch.ones(1), {}, 0.0, []), [])
        tables.add_accuracy(number, {"test": SplitAccuracy(1, 2)}, 0.1)
    assert [row["train_seconds"] for row in tables.accuracy] == [1.0, 1.5, 1.75, 5.75]
    assert tables.epochs.readings == 0  # type: ignore[attr-defined]
