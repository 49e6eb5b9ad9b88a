"""Values that papers print for single runs become records, which tables and figures show beside ours."""

from pathlib import Path

import pytest

from harness.claims import Evidence, read_claims
from harness.claims.printed_runs import find_printed_value
from harness.cli import main
from harness.report.figures.framed_tables import KINDS
from harness.report.figures.kind import read_tables
from harness.results.parquet import read_collected

ROOT = Path(__file__).parents[2]
BY_ID = {claim.id: claim for claims in read_claims(ROOT).values() for claim in claims}


@pytest.mark.parametrize(
    ("claim", "strategy", "ranks", "column", "value"),
    [
        ("SGN-120", "scalegnn", 64, "epoch_seconds_median", 4.095),
        ("SGN-071", "distdgl", 16, "seconds_to_target", 596.09),
        ("SGN-087", "distdgl", 8, "evaluation_seconds", 20.82),
        ("SGN-049", "graphsaint-node", 8, "accuracy_test", 0.802),
    ],
)
def test_a_printed_value_is_of_one_run_and_in_our_unit(
    claim: str, strategy: str, ranks: int, column: str, value: float, evidence: Evidence
) -> None:
    printed = find_printed_value(BY_ID[claim], evidence)
    assert printed
    assert (printed.spec.strategy.name, printed.spec.ranks, printed.column) == (strategy, ranks, column)
    assert printed.value == pytest.approx(value)


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        ("CAG-054", "at least"),
        ("CAG-063", "the end of an axis"),
        ("SGN-016", "a share"),
        ("PLX-092", "no run at all"),
        ("G3-117", "no formula"),
    ],
)
def test_bounds_ratios_and_shares_are_values_of_no_run(claim: str, why: str, evidence: Evidence) -> None:
    assert find_printed_value(BY_ID[claim], evidence) is None, why


def test_the_number_of_a_speedup_is_the_value_of_no_run(evidence: Evidence) -> None:
    epoch, speedup = BY_ID["SGN-120"], BY_ID["SGN-104"]
    assert find_printed_value(epoch, evidence)
    assert find_printed_value(epoch.model_copy(update={"formula": speedup.formula}), evidence) is None


@pytest.mark.long
def test_printed_values_stand_in_tables_and_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a figure: a record for each run, in the tables beside any plan, drawn hollow; the same records twice."""
    monkeypatch.setenv("HARNESS_RESULTS", str(tmp_path / "results"))
    records = tmp_path / "printed"
    for _ in range(2):
        assert (
            main(["claims", "--figure", "scalegnn-fig6a", "scalegnn-fig7a", "--records", str(records)]) == 0
        )
    assert {path.name for path in records.iterdir()} == {"scalegnn-figure-6", "scalegnn-figure-7"}
    assert len(list(records.glob("*/*/record.json"))) == 8
    nothing = tmp_path / "runs"
    nothing.mkdir()
    assert (
        main(
            [
                "collect",
                "--runs",
                str(nothing),
                "--extra",
                *map(str, records.iterdir()),
                "--out",
                str(tmp_path),
            ]
        )
        == 0
    )
    assert "8 runs collected: 8 ok; " in capsys.readouterr().out
    runs, tables = read_collected(tmp_path, "runs"), read_tables(tmp_path)
    assert set(runs.source) == {"published"}
    kinds = {kind.name: kind for kind in KINDS if kind.table == "runs"}
    shown = {
        name: [facet.title for facet in kind.make_facets(kind.split_panels(runs), tables)]
        for name, kind in kinds.items()
    }
    assert [title.partition(",")[0] for title in shown["strong-scaling"]] == ["ogbn-papers100m"]
    assert [title.partition(",")[0] for title in shown["time-to-target"]] == ["reddit"]
    (facet,) = kinds["strong-scaling"].make_facets(kinds["strong-scaling"].split_panels(runs), tables)
    assert [*facet.frame.read] == ["text", "text"]
    assert not shown["evaluation"]  # a single printed accuracy has nothing to be compared with
