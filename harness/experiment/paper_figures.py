"""The figures and tables of the papers, and the experiments that reproduce them or the reasons why none does."""

import csv
from collections.abc import Iterable
from pathlib import Path

from harness.base.documents import read_yaml
from harness.base.errors import UserError
from harness.base.validation import Frozen, format_value, unknown_name_error, validate

FIGURES = Path("workflows") / "figures.csv"
EXPERIMENTS = Path("workflows") / "experiments"


class PaperFigure(Frozen):
    """A figure or table of a paper: a line of workflows/figures.csv, and the experiments that reproduce it."""

    id: str
    paper: str
    number: str
    """The number in the paper, or the section."""
    title: str
    kind: str
    """The kind of drawing."""
    x: str
    y: str
    drawing: str
    """The file name of the drawing in the experiment's folder of figures; empty without an experiment."""
    reason: str
    """The reason why no experiment reproduces the figure; empty if one does."""
    command: str
    """A command that prints what is known about a figure without an experiment."""
    experiments: tuple[str, ...]

    @property
    def reproduction(self) -> str:
        """The experiments, or the reason and the command if there are none."""
        return ", ".join(self.experiments) or (
            f"{self.reason} ({self.command})" if self.command else self.reason
        )


def has_paper_figures(root: Path) -> bool:
    """Return whether a project has the table of the papers' figures."""
    return (root / FIGURES).is_file()


def list_paper_figures(root: Path) -> list[PaperFigure]:
    """List all figures, in the order of the file."""
    experiments: dict[str, list[str]] = {}
    for path in sorted((root / EXPERIMENTS).glob("*.yaml")):
        figures = read_yaml(path, path.name).get("reproduces") or []
        if not isinstance(figures, list) or not all(isinstance(figure, str) for figure in figures):
            raise UserError(
                f"{path.name}: reproduces = {format_value(figures)} is not accepted: give a list of ids of {FIGURES}."
            )
        for figure in figures:
            experiments.setdefault(figure, []).append(path.stem)
    return [
        validate(PaperFigure, {**row, "experiments": tuple(experiments.get(row["id"], ()))}, str(FIGURES))
        for row in _read_rows(root)
    ]


def check_figure_ids(root: Path, figures: Iterable[str], where: str) -> None:
    """Raise an error for a figure id that is not in the file."""
    known = [row["id"] for row in _read_rows(root)]
    for figure in figures:
        if figure not in known:
            raise unknown_name_error(f"{where}: figure", figure, known, f"They are the lines of {FIGURES}.")


def _read_rows(root: Path) -> list[dict[str, str]]:
    with (root / FIGURES).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
