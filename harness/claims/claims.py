"""The claims of papers, read from workflows/claims/PAPER.csv: one printed number or statement in each row.

The columns `formula` and `arguments` say how our own value of the same quantity is computed. A row whose arguments do
not fit the formula is refused.
"""

import csv
from pathlib import Path
from typing import Literal, Self

from pydantic import ConfigDict, model_validator

from harness.base.errors import UserError
from harness.base.validation import Frozen, format_value, suggest_names, unknown_name_error, validate
from harness.claims.arguments import KnownNames, list_known_names
from harness.claims.evidence import CLAIMS, read_number, read_printed_numbers
from harness.claims.formula import Formula, parse_formula
from harness.claims.formulas import FORMULAS

Comparator = Literal["=", "approx", "up_to", "below", "at_least", "range_low", "range_high"]
Tolerance = Literal["exact", "1%", "10%", "1.5x"]
Basis = Literal["card", "machine", "experiment", "formula", "prediction", "run", "cited", "nothing"]
Role = Literal["setting", "fact", "result"]
Reading = Literal["text", "table", "figure", "axis", "ratio"]
TRANSCRIBED = ("card", "machine", "experiment")
"""Bases of claims that this project copies into its own files. A copy of a number cannot be a result."""

SIGNS = {
    "approx": "about ",
    "up_to": "up to ",
    "below": "below ",
    "at_least": "at least ",
    "range_low": "from ",
    "range_high": "to ",
}
"""The words before a printed value, by its comparator."""
SUFFIXES = {"percent": "pct"}
"""The abbreviations of units in the names of metrics."""
Cause = Literal["", "the paper", "our count"]


class Claim(Frozen):
    """One claim of a paper."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    id: str
    place: str
    """Section, figure or table."""
    figure: str
    """The id of the figure or table that shows it, if one does."""
    category: str
    role: Role
    """A setting is what a paper ran, and a fact is about data, machines or other work. Only results are counted."""
    system: str
    baseline: str
    dataset: str
    machine: str
    devices: str
    config: str
    metric: str
    value: str
    unit: str
    comparator: Comparator
    """How the paper qualifies the value.

    `up_to` is the largest value that the paper found, and `range_low` and `range_high` are the ends of a range of such
    values, so ours is compared with the number. `below` and `at_least` are bounds, such as the end of an axis.
    """
    kind: Literal["absolute", "ratio", "machine_independent"]
    basis: Basis
    """What our value is computed from: a card, an experiment's file, a replay or arithmetic, a prediction, or a run."""
    tolerance: Tolerance
    fitted: Literal["", "held out"]
    """`held out`: no constant of a card may be fitted to this claim. Cards name those to which one was."""
    duplicate_of: str
    """The ids of the claims that print the same number, or from whose numbers this one is computed."""
    uncounted: Literal["", "tautology", "vacuous", "another quantity"]
    """Why the comparison shows nothing: it cannot fail, nearly every value passes, or ours is another quantity."""
    unprinted: str
    """The unit or the settings that the paper does not print, and that our value depends on."""
    choices: Literal["", "range"]
    """`range`: the choices are few, and our value is a range over them. Otherwise the claim is not comparable."""
    derived: str
    """How the value is computed from printed ones, if the paper does not print it."""
    cause: Cause
    """Why a value that is counted, computed or measured differs: the paper disagrees with itself, or our count differs.

    Predictions that are off and claims that are not comparable need no cause.
    """
    note: str
    formula: Formula | None
    """How our value is computed; None if it cannot be on any machine, and the note says why."""

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        if self.role == "result" and self.basis in TRANSCRIBED:
            raise ValueError(
                f"the claim {self.id} is copied from the paper (basis {self.basis}), so it is not a result"
            )
        if self.uncounted and not (self.role == "result" and self.note):
            raise ValueError(
                f"the claim {self.id} is uncounted ({self.uncounted}), so it needs to be a result and to have a note"
            )
        if self.choices and not self.unprinted:
            raise ValueError(f"the claim {self.id} has choices, so it needs to name what is unprinted")
        if (self.cause or self.unprinted) and not self.note:
            raise ValueError(f"the claim {self.id} has a cause or something unprinted, so it needs a note")
        return self

    @property
    def is_counted(self) -> bool:
        """Whether the scoreboard counts the claim."""
        return self.role == "result" and not self.duplicate_of and not self.uncounted

    @property
    def is_comparable(self) -> bool:
        """Whether the paper prints what our value depends on, or leaves few choices."""
        return not self.unprinted or self.choices == "range"

    @property
    def what(self) -> str:
        """The quantity, and the system, devices and dataset it describes."""
        system = f" of {self.system}" if self.system else ""
        baseline = f" over {self.baseline}" if self.baseline else ""
        devices = f" on {self.devices}" if self.devices else ""
        quantity = self.metric.removesuffix(f"_{SUFFIXES.get(self.unit, self.unit)}").replace("_", " ")
        return quantity + system + devices + baseline + (f", {self.dataset}" if self.dataset else "")

    @property
    def printed(self) -> str:
        """The value as the paper prints it, with its unit; in brackets how it is derived, if it is not printed."""
        unit = {"1": "", "count": "", "formula": "", "percent": " %"}.get(self.unit, f" {self.unit}")
        value = f"{SIGNS.get(self.comparator, '')}{self.value}{unit}"
        return f"{value} ({self.derived})" if self.derived else value

    @property
    def read(self) -> Reading:
        """Where in the paper the number was read. A ratio needs another value to become one of a run."""
        if "_axis_" in self.metric:
            return "axis"
        if self.kind == "ratio":
            return "ratio"
        words: dict[str, Reading] = {"Table": "table", "Fig": "figure"}
        return words.get(self.place.partition(" ")[0], "text")

    @property
    def number(self) -> float | None:
        """The printed number; None for a statement in words or a formula."""
        return read_number(self.value)


def list_papers(root: Path) -> list[str]:
    """List the papers that have claims."""
    return sorted(path.stem for path in (root / CLAIMS).glob("*.csv"))


def read_claims(root: Path, paper: str | None = None) -> dict[str, list[Claim]]:
    """Read the claims of one paper, or of all, by paper."""
    papers = list_papers(root)
    if paper is not None and paper not in papers:
        raise unknown_name_error("paper", paper, papers, f"Claims live in {CLAIMS}/.")
    known = list_known_names(root, read_printed_numbers(root))
    return {name: _read_paper(root, name, known) for name in papers if paper in (None, name)}


def _read_paper(root: Path, paper: str, known: KnownNames) -> list[Claim]:
    where = CLAIMS / f"{paper}.csv"
    with (root / where).open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        claims = [_read_claim(row, known, f"{where}, line {rows.line_num}") for row in rows]
    ids = [claim.id for claim in claims]
    if repeated := sorted({name for name in ids if ids.count(name) > 1}):
        raise UserError(f"{where}: {', '.join(repeated)} appear more than once.")
    counted = {claim.id for claim in claims if claim.role == "result" and not claim.duplicate_of}
    for claim in claims:
        if missing := [name for name in claim.duplicate_of.split(";") if name and name not in counted]:
            raise UserError(
                f"{where}: {claim.id} repeats {', '.join(missing)}, which are not results of their own."
            )
    return claims


def _read_claim(row: dict[str, str], known: KnownNames, where: str) -> Claim:
    name, arguments = row.pop("formula", ""), row.pop("arguments", "")
    if name not in FORMULAS and (name or arguments):
        raise UserError(
            f"{where}: the formula {format_value(name)} is unknown.{suggest_names(name, FORMULAS)} Formulas are "
            "functions in harness/claims/formulas/."
        )
    formula = parse_formula(FORMULAS[name], arguments, known, f"{where}, {name}") if name else None
    return validate(Claim, {**row, "formula": formula}, where)
