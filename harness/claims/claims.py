"""The claims of papers, as they stand in workflows/claims/PAPER.csv: a printed number or statement in each row.

The column `ours` is a formula for the same quantity, in the names of `harness.claims.evaluator`. A claim without one
cannot be tested here, and its note says why.
"""

import csv
from pathlib import Path
from typing import Literal

from harness.errors import UserError
from harness.validation import Frozen, unknown_name_error, validate

CLAIMS = Path("workflows") / "claims"

Comparator = Literal["=", "approx", "up_to", "at_least", "range_low", "range_high"]
Tolerance = Literal["exact", "1%", "10%", "1.5x", "sign", "interval", ""]
Basis = Literal["card", "machine", "experiment", "formula", "prediction", "run", "cited", "nothing"]


SIGNS = {
    "approx": "about ",
    "up_to": "up to ",
    "at_least": "at least ",
    "range_low": "from ",
    "range_high": "to ",
}

SUFFIXES = {"percent": "pct"}
"""Units as the names of metrics have them, where they differ."""


class Claim(Frozen):
    """One claim of a paper."""

    id: str
    place: str
    """Section, figure or table."""
    figure: str
    """The id of the figure or table that shows it, if one does."""
    category: str
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
    """How the paper says it: equal, about, at most, at least, or one end of a range."""
    kind: Literal["absolute", "ratio", "machine_independent"]
    basis: Basis
    """What it is held against: a card, an experiment's file, a formula of this code, a prediction, or a run."""
    tolerance: Tolerance
    fitted: Literal["", "fitted", "held out"]
    """Whether a constant of a machine's card was fitted on it; held out: whether this was ruled out beforehand."""
    ours: str
    """The formula of our own value."""
    note: str

    @property
    def what(self) -> str:
        """The quantity, of which system, on how many devices and which graph."""
        system = f" of {self.system}" if self.system else ""
        baseline = f" over {self.baseline}" if self.baseline else ""
        devices = f" on {self.devices}" if self.devices else ""
        quantity = self.metric.removesuffix(f"_{SUFFIXES.get(self.unit, self.unit)}").replace("_", " ")
        return quantity + system + devices + baseline + (f", {self.dataset}" if self.dataset else "")

    @property
    def printed(self) -> str:
        """The value as the paper says it, with its unit."""
        unit = {"1": "", "count": "", "formula": "", "percent": " %"}.get(self.unit, f" {self.unit}")
        return f"{SIGNS.get(self.comparator, '')}{self.value}{unit}"

    @property
    def number(self) -> float | None:
        """The printed number; None for a statement in words or a formula."""
        try:
            return float(self.value)
        except ValueError:
            return None


def papers(root: Path) -> list[str]:
    """The papers that have claims."""
    return sorted(path.stem for path in (root / CLAIMS).glob("*.csv"))


def read_claims(root: Path, paper: str | None = None) -> dict[str, list[Claim]]:
    """The claims of a paper, or of all, by paper."""
    if paper is not None and paper not in papers(root):
        raise unknown_name_error("paper", paper, papers(root), f"Claims live in {CLAIMS}/.")
    return {name: _read(root, name) for name in papers(root) if paper in (None, name)}


def _read(root: Path, paper: str) -> list[Claim]:
    where = CLAIMS / f"{paper}.csv"
    with (root / where).open(newline="", encoding="utf-8") as file:
        claims = [
            validate(Claim, row, f"{where}, line {number}")
            for number, row in enumerate(csv.DictReader(file), 2)
        ]
    ids = [claim.id for claim in claims]
    if twice := sorted({name for name in ids if ids.count(name) > 1}):
        raise UserError(f"{where}: {', '.join(twice)} stand there more than once.")
    return claims
