"""The targets of the workflow that reproduce figures of papers: a figure, a paper, or all of them."""

import re
from collections.abc import Collection, Iterable
from pathlib import Path

from harness.base.errors import UserError
from harness.base.validation import unknown_name_error
from harness.experiment.paper_figures import EXPERIMENTS, PaperFigure
from harness.experiment.workflow.studies import Studies, read_experiment


def experiment_file(name: str) -> str:
    """Return the file of a built-in experiment."""
    return str(EXPERIMENTS / f"{name}.yaml")


class PaperTargets:
    """The targets for the figures of papers at one scale, and the reports that each target needs."""

    def __init__(self, figures: Iterable[PaperFigure], studies: Studies, scale: str) -> None:
        self._studies, self._scale = studies, scale
        self.folder = f"results/papers/{scale}"
        """The folder of the results."""
        self.figures: dict[str, list[PaperFigure]] = {}
        """The figures of each target."""
        self.requested: list[str] = []
        """The reports that a workflow was asked for."""
        self.reproduced: dict[str, list[str]] = {}
        """The ids of the figures that each experiment reproduces."""
        for figure in figures:
            for target in _list_targets(figure):
                self.figures.setdefault(target, []).append(figure)
            for experiment in figure.experiments:
                self.reproduced.setdefault(experiment, []).append(figure.id)

    def list_reports(self, target: str) -> list[str]:
        """Return the reports of a target, and plan their experiments."""
        names = self._list_experiments(target)
        self._studies.write_plans(map(experiment_file, names))
        self._studies.write_plans(map(experiment_file, filter(self.has_emulated_runs, names)), "emulated")
        return [f"{self.folder}/{name}/report.html" for name in names]

    def check_targets(self, requested: Collection[str], rules: Collection[str]) -> None:
        """Raise UserError for a target that is neither a rule nor a file, and for a figure that cannot be made here."""
        for target in requested:
            if target in self.figures:
                self.requested += self.list_reports(target)
            elif target not in rules and re.fullmatch(r"[\w-]+", target) and not Path(target).exists():
                way_out = (
                    "`harness list figures` describes the figures; `all` runs the configured experiment."
                )
                raise unknown_name_error("target", target, list(rules), way_out)

    def _list_experiments(self, target: str) -> list[str]:
        """Return the experiments of a target, without figures that have none at this scale.

        If no figure of the target has one, it is refused.
        """
        figures = self.figures[target]
        names = list(dict.fromkeys(name for figure in figures for name in figure.experiments))
        if self._scale == "published":
            names = [name for name in names if read_experiment(experiment_file(name)).published]
        if not names:
            reasons = "; ".join(f"{figure.id}: {figure.reproduction}" for figure in figures)
            raise UserError(f"target {target} has no experiment at the scale {self._scale}. {reasons}.")
        return names

    def has_emulated_runs(self, experiment: str) -> bool:
        """Return whether the report of an experiment shows emulated runs next to its own."""
        return self._scale == "laptop" and read_experiment(experiment_file(experiment)).emulated is not None


def _list_targets(figure: PaperFigure) -> list[str]:
    """Return the targets of a figure: its id, its number without the panel, its paper, and all papers."""
    number = re.sub(r"(-(fig|tab)\d+)[a-z-].*$", r"\1", figure.id)
    names = (figure.id, number, f"paper-{figure.paper}", "papers")
    return list(dict.fromkeys(name.replace("-", "_") for name in names))
