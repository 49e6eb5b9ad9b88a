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
from harness.site.writing import WrittenSite, write_site
from harness.spec.root import find_root
from harness.submission.packing import pack_submission

Contribute = Callable[..., Path]
AddRuns = Callable[..., list[Path]]
LAUNCHES = 6
MARKUP = '<img src=x onerror="alert(1)">'


@pytest.fixture(scope="session")
def add_runs(synthetic: SimpleNamespace) -> AddRuns:
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


@pytest.fixture(scope="session")
def made(
    add_runs: AddRuns, synthetic: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, WrittenSite]:
    """Two groups with different machines, one with a prediction and a run of markup, a hostile archive; their site."""
    base = tmp_path_factory.mktemp("groups")
    for group, factor, cpu in (("Group A", 1.0, "AMD EPYC 7763"), ("Group B", 2.0, "Intel Xeon")):
        folder = base / group
        for ranks in (1, 2):
            add_runs(folder, "cagnet-1d", {"p": ranks}, factor / ranks, range(2), cpu=cpu)
        add_runs(folder, "plexus", {"x": 2, "y": 1, "z": 1}, 1.5 * factor, range(2), cpu=cpu)
        if group == "Group B":
            spec = synthetic.make_spec("bns-gcn", "products-14m", {"p": 2})
            synthetic.write_quoted(folder, spec, 0.3, "predicted")
            for run in add_runs(folder, "serial", {"p": 1}, 3.0, [0], cpu=cpu):
                change_record(run, lambda record: record["provenance"].update(host=MARKUP, command=MARKUP))
                change_record(run, lambda record: record.update(label=MARKUP))
        pack_runs(base / "archives", group, folder)
    (base / "archives" / "hostile.tar.gz").write_bytes(b"not an archive")
    return base, write_site([base / "archives"], base / "site", find_root())
