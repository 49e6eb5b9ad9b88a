"""Submissions for tests of the site: synthetic runs whose records agree with their tables, packed by several groups."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.registry import hash_strategy_code
from harness.results.run_summary import summarize_tables
from harness.submission.packing import pack_submission

Contribute = Callable[..., Path]
LAUNCHES = 6


@pytest.fixture(scope="session")
def add_runs(synthetic: SimpleNamespace) -> Callable[..., list[Path]]:
    """`add_runs(folder, strategy, grid, seconds, launches=..., spec={...}, provenance...)`: the folders of the runs."""

    def add(
        folder: Path,
        strategy: str,
        grid: dict[str, int],
        seconds: float,
        launches: Any = range(LAUNCHES),
        *,
        dataset: str = "products-14m",
        spec: dict[str, Any] | None = None,
        summary: dict[str, Any] | None = None,
        **changes: Any,
    ) -> list[Path]:
        written = []
        code = hash_strategy_code(strategy)
        for launch in launches:
            made = synthetic.make_spec(strategy, dataset, grid, launch=launch, **(spec or {}))
            tables = synthetic.make_tables(made, seconds, 0.1 * seconds)
            record = synthetic.make_record(made, tables)
            record["summary"] |= summarize_tables(tables, made.training.target) | (summary or {})
            provenance = synthetic.provenance(strategy_code=code, graph_hash="a" * 64, **changes)
            record["provenance"] = provenance
            written.append(synthetic.write_record(folder, made.model_dump(mode="json"), record, tables))
        return written

    return add


@pytest.fixture
def contribute(tmp_path: Path) -> Contribute:
    """`contribute(group, folder)`: the archive of all runs in a folder."""
    return partial(pack_runs, tmp_path / "archives")


def pack_runs(archives: Path, group: str, folder: Path, proofs: Sequence[Path] = ()) -> Path:
    """Pack all runs in a folder as the submission of a group."""
    archives.mkdir(exist_ok=True)
    return pack_submission([folder], group, archives / f"{group.replace(' ', '-')}.tar.gz", proofs=proofs)


def change_record(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the record of a run by hand."""
    record = json.loads((folder / "record.json").read_text())
    change(record)
    (folder / "record.json").write_text(json.dumps(record))
