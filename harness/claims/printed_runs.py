"""The values that papers print for single runs, as records of source `published`: tables and figures show them too.

A claim is the value of a run where its formula is nothing but a call of a name in COLUMNS, with the unit as a factor:
`1000 * epoch('scalegnn-figure-7', machine='perlmutter', ranks=64).seconds`. Bounds, ranges and ratios are none.
"""

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from harness.claims.claims import Claim
from harness.claims.evaluator import Evaluator
from harness.results.record import write_record
from harness.spec.spec import Spec, digest

COLUMNS = {
    "epoch": "epoch_seconds_median",
    "seconds_to_target": "seconds_to_target",
    "evaluation": "evaluation_seconds",
    "accuracy": "accuracy_test",
}
"""The column of the table `runs` for each name of a formula."""
HOW = ("twins", "on")
"""What a call says on how to predict, and not on which run."""


class PrintedValue(NamedTuple):
    """A printed value and the run that it is of, by a column of the table `runs`."""

    claim: Claim
    spec: Spec
    column: str
    value: float


def printed_value(claim: Claim, evaluator: Evaluator) -> PrintedValue | None:
    """The value that a claim prints for a run; None if it prints no such value.

    A run whose grid or width the paper leaves open is the first of those that its experiment has.
    """
    if not claim.ours or claim.number is None or claim.comparator not in ("=", "approx"):
        return None
    call, factor = _without_unit(ast.parse(claim.ours, mode="eval").body)
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in COLUMNS):
        return None
    name, *_ = (evaluator.value(ast.unparse(each)) for each in call.args)
    which = {
        str(each.arg): evaluator.value(ast.unparse(each.value))
        for each in call.keywords
        if each.arg not in HOW
    }
    spec = evaluator.experiment(name, **which)[0].model_copy(update={"launch": 0})
    factor *= 100 if call.func.id == "accuracy" else 1
    return PrintedValue(claim, spec, COLUMNS[call.func.id], claim.number / factor)


def _without_unit(tree: ast.expr) -> tuple[ast.expr, float]:
    """An expression without the number that it is multiplied by, and without `.seconds`; and the number."""
    match tree:
        case ast.BinOp(left=ast.Constant(value=int() | float() as factor), op=ast.Mult(), right=product):
            return _without_unit(product)[0], factor
        case ast.Attribute(value=value, attr="seconds"):
            return value, 1.0
    return tree, 1.0


def record_printed(runs: Path, claims: Iterable[Claim], evaluator: Evaluator) -> list[Path]:
    """Writes a run folder for each run of which the claims print values, and returns the folders."""
    by_run: dict[str, list[PrintedValue]] = {}
    for claim in claims:
        if found := printed_value(claim, evaluator):
            by_run.setdefault(found.spec.run_id, []).append(found)
    runs.mkdir(parents=True, exist_ok=True)
    return [_record(runs, values) for values in by_run.values()]


def _record(runs: Path, values: list[PrintedValue]) -> Path:
    spec, summary = values[0].spec, {each.column: each.value for each in values}
    printed = {each.claim.id: f"{each.claim.place}: {each.claim.printed}" for each in values}
    document = spec.model_dump(mode="json")
    run_id = digest({"spec": document, "printed": printed})
    record: dict[str, Any] = {
        "run_id": run_id,
        "label": f"{spec.label.rsplit('-', 1)[0]}-published-{run_id[:6]}",
        "status": "ok",
        "source": "published",
        "summary": summary,
        "provenance": {},
        "error": None,
        "printed": printed,
    }
    return write_record(runs, document, record, {})
