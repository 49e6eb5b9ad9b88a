"""Packs that nobody recorded: synthetic runs of several groups, whose records agree with their tables."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from harness.registry import hash_strategy_code
from harness.report.pack.packing import pack_results
from tests.synthetic_runs import make_record, make_spec, make_tables, write_record

LAUNCHES = 6
MARKUP = '<img src=x onerror="alert(1)">'


def add_runs(
    folder: Path,
    strategy: str,
    grid: dict[str, int],
    seconds: float,
    launches: Iterable[int] = range(LAUNCHES),
    *,
    dataset: str = "products-14m",
    spec: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
    **provenance: Any,
) -> list[Path]:
    """Write launches of a run, which the rules of comparison accept, and return their folders."""
    written = []
    known = {"strategy_code": hash_strategy_code(strategy), "graph_hash": "a" * 64, **provenance}
    for launch in launches:
        made = make_spec(strategy, dataset, grid, launch=launch, **(spec or {}))
        tables = make_tables(made, seconds, 0.1 * seconds)
        record = make_record(made, tables)
        record["provenance"] |= known
        record["summary"] |= summary or {}
        written.append(write_record(folder, made.model_dump(mode="json"), record, tables))
    return written


def pack_runs(archives: Path, group: str, folder: Path, certificates: Sequence[Path] = ()) -> Path:
    """Pack all runs in a folder as those of a group."""
    archives.mkdir(parents=True, exist_ok=True)
    out = archives / f"{group.replace(' ', '-')}.tar.gz"
    nowhere = folder / "nowhere"
    return pack_results([folder], group, out, tables=nowhere, figures=nowhere, certificates=certificates).path


def change_record(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the record of a run by hand."""
    record = json.loads((folder / "record.json").read_text())
    change(record)
    (folder / "record.json").write_text(json.dumps(record))
