"""The runs of the papers behind their figures: predicted and saved once, then recorded for every drawing."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path

from harness.base.errors import UserError
from harness.base.progress import OnStep, report_steps
from harness.claims.arguments import EXPERIMENTS
from harness.claims.claims import Claim, read_claims
from harness.claims.estimates import UntestableClaim
from harness.claims.evidence import Evidence
from harness.claims.printed_runs import record_printed
from harness.claims.selection import Selection, select
from harness.claims.verdicts import ClaimFilter
from harness.experiment.experiment_file import load_experiment
from harness.experiment.paper_figures import list_paper_figures
from harness.prediction.epoch import group_machine_variants
from harness.prediction.predicted_record import record_prediction, record_refusal
from harness.runtime.provenance import collect_provenance
from harness.spec.spec import Spec

MOST_TWIN_NONZEROS = 5e7
"""The nonzeros of a twin from which it takes longer than minutes to build and to partition."""
TwinsOfRuns = Mapping[tuple[str, str], str]
"""The scales of the twins from which epochs are predicted, by strategy and graph."""


def save_figure_predictions(evidence: Evidence, folder: Path, on_step: OnStep) -> list[Path]:
    """Predict the runs of every experiment that reproduces a figure, and write a file for each experiment.

    A run is predicted from twins of its graph if a claim about its strategy and graph is. The reason why a run cannot
    be predicted is saved, too. A file also has whatever else `evidence` has predicted for its runs.
    """
    figures = list_paper_figures(evidence.root)
    experiments = sorted({name for figure in figures for name in figure.experiments})
    claims = [claim for of_paper in read_claims(evidence.root).values() for claim in of_paper]
    twins, commit = find_twins(evidence, claims), str(collect_provenance(evidence.root)["commit"])[:10]
    paths = []
    for name in report_steps(experiments, lambda name: f"predicting {name}", on_step):
        specs = list_first_launches(evidence, name)
        for spec in specs:
            _predict_run(evidence, spec, twins.get((spec.strategy.name, spec.dataset.name), ""))
        if specs:
            paths.append(evidence.saved.write(folder, name, specs, evidence.root, commit))
    return paths


def record_figure_runs(evidence: Evidence, chosen: ClaimFilter, folder: Path) -> list[Path]:
    """Record what claims print about single runs of figures, and what is saved about the runs behind them.

    Each experiment has a separate folder, with a run folder for each value or prediction.
    """
    claims = [claim for of_paper in chosen.read(evidence.root).values() for claim in of_paper]
    by_experiment: dict[str, list[Claim]] = {}
    for figure in list_paper_figures(evidence.root):
        if chosen.paper in (None, figure.paper) and (not chosen.figures or figure.id in chosen.figures):
            for name in figure.experiments:
                printed = by_experiment.setdefault(name, [])
                printed += [claim for claim in claims if claim.figure == figure.id]
    return [
        path
        for name, printed in by_experiment.items()
        for path in [
            *record_printed(folder / name, printed, evidence),
            *_record_saved(folder / name, name, evidence),
        ]
    ]


def _record_saved(runs: Path, experiment: str, evidence: Evidence) -> list[Path]:
    paths, here = [], collect_provenance(evidence.root)
    for spec in list_first_launches(evidence, experiment):
        if (saved := evidence.saved.find_best(spec)) is None:
            continue
        origin = {**here, "commit": saved.commit, "dirty": False}
        if saved.predicted is None:
            paths.append(record_refusal(runs, spec, saved.refusal, origin))
        else:
            facts, card = evidence.load_facts(spec.dataset.name), evidence.load_machine(spec.machine.name)
            paths.append(record_prediction(runs, spec, facts, card, saved.predicted, origin))
    return paths


def list_first_launches(evidence: Evidence, experiment: str) -> list[Spec]:
    """List the first launches of an experiment's published runs; none if it has no such runs."""
    if not load_experiment(evidence.root / EXPERIMENTS / f"{experiment}.yaml").published:
        return []
    specs = evidence.list_runs(select(experiment))
    return group_machine_variants(spec for spec in specs if spec.launch == 0)


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
        if twins:
            _check_twins(evidence, spec.dataset.name, twins)
        evidence.time_epoch_of_run(spec, twins)
    except (UserError, UntestableClaim) as reason:
        evidence.saved.add(spec, spec.machine.name, str(reason), twins)


def _check_twins(evidence: Evidence, dataset: str, twins: str) -> None:
    largest = max(map(Fraction, twins.split(",")))
    nonzeros = float(largest) * evidence.load_facts(dataset).nonzeros
    if nonzeros > MOST_TWIN_NONZEROS:
        raise UserError(
            f"Its sizes depend on the edges, and a twin of {dataset} of {largest} of its size has "
            f"{nonzeros / 1e6:,.0f} million nonzeros, which take hours."
        )
