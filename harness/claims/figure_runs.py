"""Predicts all runs of the papers behind figures, and saves the predictions for workflows and later judgements."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.base.errors import UserError
from harness.base.progress import OnStep, report_steps
from harness.claims.arguments import EXPERIMENTS
from harness.claims.claims import Claim
from harness.claims.estimates import UntestableClaim
from harness.claims.evidence import Evidence
from harness.claims.selection import Selection, select
from harness.experiment.experiment_file import load_experiment
from harness.experiment.paper_figures import list_paper_figures
from harness.prediction.epoch import group_machine_variants
from harness.spec.spec import Spec

TwinsOfRuns = Mapping[tuple[str, str], str]
"""The scales of the twins from which epochs are predicted, by strategy and graph."""


def save_figure_predictions(
    evidence: Evidence, claims: Iterable[Claim], folder: Path, on_step: OnStep
) -> list[Path]:
    """Predict the runs of every experiment that reproduces a figure, and write a file for each experiment.

    A run is predicted from twins of its graph if a claim about its strategy and graph is. The reason why a run cannot
    be predicted is saved, too. The files also have the other predictions of these runs that `evidence` has made.
    """
    figures = list_paper_figures(evidence.root)
    experiments = sorted({name for figure in figures for name in figure.experiments})
    twins = find_twins(evidence, claims)
    paths = []
    for name in report_steps(experiments, lambda name: f"predicting {name}", on_step):
        if load_experiment(evidence.root / EXPERIMENTS / f"{name}.yaml").published:
            specs = evidence.list_runs(select(name))
            for spec in group_machine_variants(spec for spec in specs if spec.launch == 0):
                _predict_run(evidence, spec, twins.get((spec.strategy.name, spec.dataset.name), ""))
            paths.append(evidence.saved.write(folder, name, specs, evidence.root))
    return paths


def find_twins(evidence: Evidence, claims: Iterable[Claim]) -> TwinsOfRuns:
    """Return the twins that claims name for the epochs of a strategy on a graph."""
    found: dict[tuple[str, str], str] = {}
    for claim in claims:
        for runs in claim.formula.args if claim.formula else ():
            if isinstance(runs, Selection) and runs.twins:
                for spec in evidence.list_runs(runs, any_grid=True):
                    found[spec.strategy.name, spec.dataset.name] = runs.twins
    return found


def _predict_run(evidence: Evidence, spec: Spec, twins: str) -> None:
    try:
        evidence.time_epoch_of_run(spec, twins)
    except (UserError, UntestableClaim) as reason:
        evidence.saved.add(spec, spec.machine.name, str(reason), twins)
