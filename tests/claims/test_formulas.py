"""A row's formula and arguments are checked when they are read, and call the function with values of its types."""

import csv
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.claims import Evidence, read_claims
from harness.claims.arguments import list_known_names
from harness.claims.estimates import Estimate
from harness.claims.formula import Formula, parse_formula
from harness.claims.formulas import FORMULAS
from harness.claims.formulas.runs import combine
from harness.claims.selection import Selection, parse_selection, select
from harness.claims.verdicts import judge

ROOT = Path(__file__).parents[2]
CLAIMS = {claim.id: claim for claims in read_claims(ROOT).values() for claim in claims}
KNOWN = list_known_names(ROOT, ["G3-077"])
WITHOUT_RUNS = {"SGN-012"}
"""Claims on runs that the paper has and its experiment lacks."""


def read(name: str, arguments: str) -> Formula:
    return parse_formula(FORMULAS[name], arguments, KNOWN, "a row")


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("count", "vertices", ["graphs is missing"]),
        ("count", "vertices; redit", ["graph redit", "Did you mean reddit"]),
        ("count", "nodes; reddit", ["'nodes'", "'vertices'"]),
        ("count", "vertices; ; reddit", ["empty"]),
        ("count_batches", "vertices; reddit; many", ["batch = 'many'"]),
        ("count_batches", "vertices; reddit; 4; rounded=10", ["rounded", "Did you mean rounded_to"]),
        ("count_model_points", "7", ["'7'", "too many"]),
        ("find_on_card", "memory_gb; perlmuter", ["machine perlmuter", "Did you mean perlmutter"]),
        ("find_on_card", "memory_gb; perlmutter; unit=GX", ["'GX'", "GiB"]),
        ("find_on_card", "memory_gb; perlmutter; times=1/0", ["times = '1/0'", "1/8"]),
        ("find_epoch_seconds", "smoke; unit=ms", ["'ms'", "in s"]),
        ("find_epoch_seconds", "plexus-figure-88", ["experiment plexus-figure-88", "plexus-figure-8"]),
        ("find_epoch_seconds", "smoke rank=4", ["rank ", "Did you mean ranks"]),
        ("find_epoch_seconds", "smoke ranks=four", ["ranks=four", "whole number"]),
        ("find_epoch_seconds", "smoke ranks=4 ranks=8", ["ranks is given twice"]),
        ("find_epoch_seconds", "smoke ranks", ["ranks is not KEY=VALUE"]),
        ("find_epoch_seconds", "smoke dataset=reddit|redit", ["graph redit", "Did you mean reddit"]),
        ("find_epoch_seconds", "smoke cards=perlmuter", ["machine perlmuter", "Did you mean perlmutter"]),
        ("find_printed", "G3-07", ["claim G3-07", "Did you mean G3-077"]),
        ("find_scaling", "smoke; take=median", ["take = 'median'", "'mean'"]),
        ("find_scaling", "take=mean; smoke", ["'smoke'", "needs a name"]),
        ("find_scaling", "smoke; take=mean; take=range", ["take is given twice"]),
        ("divide_layer_calls", "cagnet-2d; 46", ["'cagnet-2d'", "cagnet-2d 8x8"]),
        ("divide_layer_elements", "cagnet-2d 8x8; nf; op=broadkast", ["'broadkast'", "'broadcast'"]),
    ],
)
def test_argument_that_does_not_fit_is_refused(name: str, arguments: str, words: list[str]) -> None:
    with pytest.raises(UserError) as refusal:
        read(name, arguments)
    assert str(refusal.value).startswith("a row: ")
    assert [word for word in words if word not in str(refusal.value)] == []


@pytest.mark.parametrize(
    ("formula", "arguments", "words"),
    [
        ("cuont", "vertices; reddit", ["'cuont' is unknown", "Did you mean count"]),
        ("", "vertices; reddit", ["'' is unknown"]),
        ("count", "vertices; 7", ["count: ", "graph 7"]),
    ],
)
def test_refusal_names_the_file_and_the_line(
    formula: str, arguments: str, words: list[str], tmp_path: Path
) -> None:
    with (ROOT / "workflows/claims/cagnet.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))[:2]
    path = tmp_path / "workflows" / "claims" / "mine.csv"
    path.parent.mkdir(parents=True)
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerow({**rows[0], "formula": "", "arguments": ""})
        table.writerow({**rows[1], "formula": formula, "arguments": arguments})
    with pytest.raises(UserError) as refusal:
        read_claims(tmp_path)
    assert str(refusal.value).startswith("workflows/claims/mine.csv, line 3")
    assert [word for word in words if word not in str(refusal.value)] == []


def test_arguments_have_the_types_of_their_parameters() -> None:
    assert read("has_shards_up_to", "3; none; 1; 2").args == (3, "none", 1, 2)
    in_gib = read("find_on_card", "memory_gb; frontier; times=1/2; unit=GiB")
    assert (in_gib.args, in_gib.kwargs, in_gib.unit) == (("memory_gb", "frontier"), {"times": 0.5}, "GiB")
    (runs,) = read("find_epoch_seconds", "smoke|plexus-figure-8 ranks=4|8 fused=true twins=1/10,1/7").args
    ranks = frozenset({4, 8})
    assert runs == select("smoke", "plexus-figure-8", twins="1/10,1/7", ranks=ranks, fused=True)  # type: ignore[arg-type]


def test_formula_is_printed_with_the_arguments_of_its_row() -> None:
    assert str(read("count", "vertices; reddit")) == "count(vertices; reddit)"


def test_every_function_is_used_and_every_selection_has_runs(evidence: Evidence) -> None:
    formulas = {name: claim.formula for name, claim in CLAIMS.items() if claim.formula}
    assert {each.function.__name__ for each in formulas.values()} == set(FORMULAS)
    for name, formula in formulas.items():
        for runs in formula.args:
            if isinstance(runs, Selection) and name not in WITHOUT_RUNS:
                assert evidence.list_runs(runs, any_grid=True), name
                assert parse_selection(str(runs)) == runs


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        (
            "find_setting",
            "ranks; plexus-figure-8 dataset=europe-osm",
            "run of plexus-figure-8 dataset=europe-osm",
        ),
        ("find_on_card", "hardware.sockets; local", "the card lacks hardware.sockets (machine local)"),
    ],
)
def test_formula_that_fails_is_an_error_that_names_the_claim(
    name: str, arguments: str, words: str, evidence: Evidence
) -> None:
    claim = CLAIMS["CAG-003"].model_copy(update={"formula": read(name, arguments)})
    with pytest.raises(UserError) as refusal:
        judge(claim, evidence)
    assert str(refusal.value).startswith(f"CAG-003: the formula {name}({arguments}) fails.")
    assert words in str(refusal.value)


def test_several_estimates_need_to_say_which_counts() -> None:
    with pytest.raises(UserError, match="2 estimates: say which to take"):
        combine([Estimate(1, 1, 1), Estimate(2, 2, 2)], "single")
