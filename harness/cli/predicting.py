"""harness predict: predicts the time of an epoch on a machine that has a card."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.cli.options import (
    ProgressLine,
    Verbs,
    add_set_option,
    add_verb,
    comma_list,
    describe_size_source,
    format_columns,
    format_paragraph,
    parse_settings,
    print_answer,
    print_progress,
    rank_count,
)
from harness.errors import UserError
from harness.formatting import GB
from harness.progress import report_steps
from harness.spec.plan import SCALES
from harness.spec.root import find_root
from harness.spec.spec import format_grid

if TYPE_CHECKING:
    from harness.experiment.known_graph import GraphLookup
    from harness.predict.advice import Predictor
    from harness.predict.prediction import Prediction
    from harness.spec.machine_card import MachineCard
    from harness.spec.spec import Spec
    from harness.strategy import Facts, Ready

CARD_NOTE = (
    "A card does not contain the edges. Sizes that depend on the edges are predicted for a random order of the "
    "vertices. For strategies that send the boundary of a part this is an upper bound: a good partition needs fewer "
    "rows. Build the graph and use --partition metis, or name three twins of it (--twins)."
)


def add_verbs(verbs: Verbs) -> None:
    predict = add_verb(
        verbs,
        "predict",
        _predict_epochs,
        "Predict the time of an epoch on a machine that has a card, before anything runs there.",
        "Replays the strategy's own code on shapes, prices its kernels and calls by the constants of the card "
        "config/machines/NAME.yaml, and simulates how ranks wait for each other. The interval follows from the "
        "intervals of the constants. With --experiment, predicts every run of the experiment on the machine that the "
        "run names.",
    )
    predict.add_argument("--strategy", metavar="NAME", help="the strategy")
    predict.add_argument(
        "--experiment",
        type=Path,
        metavar="FILE",
        help="the experiment whose runs are predicted, on every grid",
    )
    predict.add_argument(
        "--scale",
        choices=SCALES,
        default="published",
        help="with --experiment: the size of its runs: published as in the paper (default), laptop for one machine, "
        "emulated, or tiny",
    )
    predict.add_argument(
        "--ranks",
        type=comma_list(rank_count),
        default=[1],
        metavar="A,B,C",
        help="the numbers of ranks (default 1)",
    )
    predict.add_argument(
        "--grid",
        metavar="2x2x2",
        help="the sizes of the strategy's axes, or best: the fastest grid (default: the strategy's first choice)",
    )
    predict.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="write each prediction as the record of a run under DIR, for tables and figures",
    )
    add_prediction_options(predict, required=False)


def add_prediction_options(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the options of predictions: the graph, the machine, and where the sizes come from."""
    parser.add_argument(
        "--dataset",
        required=required,
        metavar="NAME",
        help="the graph; its sizes are counted in its store if it is built, else taken from its card",
    )
    parser.add_argument(
        "--machine", default="local", metavar="NAME", help="the machine card (default: local)"
    )
    parser.add_argument(
        "--from-card",
        action="store_true",
        help="take the sizes of the graph from its card even if it is built",
    )
    parser.add_argument(
        "--twins",
        type=comma_list(str),
        default=[],
        metavar="1/256,1/64,1/16",
        help="the scales of three twins of the graph, which are built if needed, to extrapolate the sizes of "
        "strategies that split the vertices into parts",
    )
    add_set_option(parser)


def _predict_epochs(options: argparse.Namespace) -> int:
    if options.experiment and not (options.strategy or options.dataset):
        return _predict_experiment(options)
    if options.experiment or not (options.strategy and options.dataset):
        raise UserError("predict takes either --strategy NAME --dataset NAME or --experiment FILE.")
    return _predict_strategy(options)


def _predict_strategy(options: argparse.Namespace) -> int:
    from harness.predict.predicted_record import record_prediction
    from harness.predict.prediction import check_card

    root = find_root(options.root)
    card, look_up = load_chosen_card(root, options), make_graph_lookup(root, options)
    predict_epoch = make_predictor(root, options)
    check_card(card)
    rows, answers, page = list[tuple[str, ...]]([PREDICTION_TITLES]), [], list[str]()
    with ProgressLine() as on_step:
        for count in report_steps(options.ranks, lambda count: f"predicting {count} ranks", on_step):
            ready = _make_ready(root, options, look_up, count)
            strategy, predicted = ready.strategy, predict_epoch(ready, card)
            rows.append((str(count), format_grid(strategy.spec.grid), *format_prediction(predicted, card)))
            page.append(format_paragraph(f"{count}: {_format_parts(predicted)}"))
            answers.append({"ranks": count, "grid": strategy.grid, **make_document(predicted)})
            if options.out:
                record_prediction(root, options.out, strategy.spec, strategy.facts, card, predicted)
    head = f"{options.strategy} on {options.dataset}, {card.name}; sizes {describe_sizes(options, strategy.facts)}"
    if strategy.partitioned_over and not (strategy.facts.exact or options.twins):
        page += ["", format_paragraph(CARD_NOTE)]
    text = "\n".join([head, "", format_columns(rows), "", "Where the time goes, by ranks", *page])
    print_answer(options, answers, text)
    return 0


def _format_parts(predicted: "Prediction") -> str:
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in predicted.parts.items())


def _predict_experiment(options: argparse.Namespace) -> int:
    """Predict the runs of an experiment. Runs that differ only in their launch are predicted once."""
    from harness.experiment.expand import expand
    from harness.experiment.experiment_file import load_experiment
    from harness.experiment.scales import select_scale
    from harness.predict.prediction import group_machine_variants
    from harness.registry import load_strategy
    from harness.spec.machine_card import load_machine_card
    from harness.strategy import Ready, admit

    root = find_root(options.root)
    look_up, predict_epoch = make_graph_lookup(root, options), make_predictor(root, options)
    specs = expand(root, select_scale(root, load_experiment(options.experiment), options.scale))
    firsts = (spec.model_copy(update={"launch": 0}) for spec in specs)
    different = {spec.label: spec for spec in group_machine_variants(firsts)}

    def predict_run(spec: "Spec") -> EpochPrediction:
        card, graph = load_machine_card(root, spec.machine.name), look_up(spec.dataset)
        ready = Ready(admit(load_strategy(spec.strategy.name), spec, graph.facts), graph.blocks)
        return EpochPrediction(spec, graph.facts, card, predict_epoch(ready, card))

    tasks = {label: partial(predict_run, spec) for label, spec in different.items()}
    table = collect_predictions(root, options.out, tasks, "predicting", different)
    print_answer(
        options, {"predicted": table.documents, "refused": table.refused}, table.format_page("No prediction")
    )
    return 0


class EpochPrediction(NamedTuple):
    """The predicted or emulated epoch of a run on a machine. `emulates` is the id of the run that was emulated."""

    spec: "Spec"
    facts: "Facts"
    card: "MachineCard"
    predicted: "Prediction"
    emulates: str = ""


class PredictionTable(NamedTuple):
    """Predictions as table rows and as JSON documents, and the reasons for refused runs by label."""

    rows: list[tuple[str, ...]]
    documents: list[dict[str, Any]]
    refused: dict[str, str]

    def format_page(self, refused_title: str) -> str:
        """Return the table, and below it the refused runs under a title."""
        page = [format_columns([("run", "machine", *PREDICTION_TITLES), *self.rows])] if self.rows else []
        reasons = (format_paragraph(f"{label}: {reason}") for label, reason in self.refused.items())
        page += ["\n".join([refused_title, *reasons])] if self.refused else []
        return "\n\n".join(page)


def collect_predictions(
    root: Path,
    out: Path | None,
    tasks: Mapping[str, Callable[[], EpochPrediction]],
    doing: str,
    specs: Mapping[str, "Spec"] | None = None,
) -> PredictionTable:
    """Run every predictor in `tasks`, which are named by label, and write a record of each prediction under `out`.

    Refused runs are recorded, too, if `specs` has their specs.
    """
    from harness.predict.predicted_record import record_prediction, record_refusal

    table = PredictionTable([], [], {})
    if out:  # a workflow waits for the folder even if all runs are refused
        out.mkdir(parents=True, exist_ok=True)
    with ProgressLine() as on_step:
        for label in report_steps(tasks, lambda label: f"{doing} {label}", on_step):
            try:
                spec, facts, card, predicted, emulates = tasks[label]()
            except UserError as refusal:
                table.refused[label] = str(refusal)
                if out and specs:
                    record_refusal(root, out, specs[label], str(refusal))
                continue
            cells = (str(spec.ranks), format_grid(spec.grid), *format_prediction(predicted, card))
            table.rows.append((spec.label, card.name, *cells))
            known = {"run": spec.label, "machine": card.name, "ranks": spec.ranks, "grid": spec.grid}
            table.documents.append({**known, **make_document(predicted)})
            if out:
                record_prediction(root, out, spec, facts, card, predicted, emulates)
    return table


PREDICTION_TITLES = ("ranks", "grid", "epoch ms", "between", "waiting", "words", "peak GB", "limited by")


def format_prediction(predicted: "Prediction", card: "MachineCard") -> tuple[str, ...]:
    """Return the cells of a prediction, without its ranks and grid."""
    seconds, peak = predicted.seconds, predicted.peak_bytes / GB
    fits = card.memory_gb is None or peak <= card.memory_gb
    name = predicted.limited_by
    return (
        format_number(1e3 * seconds.value),
        f"{format_number(1e3 * seconds.low)} - {format_number(1e3 * seconds.high)}",
        f"{100 * predicted.waiting / seconds.value:.0f} %",
        f"{predicted.elements_received:.3g}",
        f"{peak:.3g}" if fits else f"{peak:.3g}: out of memory",
        f"{name.split('.')[1]} {100 * predicted.shares[name]:.0f} %",
    )


def format_number(number: float) -> str:
    """Return a number with three significant digits, or as a whole number from 1,000."""
    return f"{number:.3g}" if number < 1000 else f"{number:.0f}"


def make_document(predicted: "Prediction") -> dict[str, Any]:
    """Return a prediction as JSON data."""
    return {
        "seconds": vars(predicted.seconds),
        "entries": [{**key._asdict(), "seconds": seconds} for key, seconds in predicted.entries.items()],
        "waiting": predicted.waiting,
        "elements_received": predicted.elements_received,
        "peak_bytes": predicted.peak_bytes,
        "shares": dict(predicted.shares),
    }


def _make_ready(root: Path, options: argparse.Namespace, look_up: "GraphLookup", count: int) -> "Ready":
    """Return the requested strategy on `count` ranks, admitted for its graph."""
    from harness.experiment.requests import make_spec
    from harness.registry import load_strategy
    from harness.strategy import Ready, admit

    request = make_request(options, count)
    request["strategy"] = {**request.get("strategy", {}), "name": options.strategy}
    if options.grid:
        request["grid"] = options.grid
    spec = make_spec(root, request, "the options")
    graph = look_up(spec.dataset)
    return Ready(admit(load_strategy(options.strategy), spec, graph.facts), graph.blocks)


def make_request(options: argparse.Namespace, count: int) -> dict[str, Any]:
    """Return the request of a run on `count` ranks, without its strategy and grid."""
    from harness.experiment.requests import nest_settings

    requested = {"dataset.name": options.dataset, "ranks": count, "machine": options.machine}
    return nest_settings({**requested, **parse_settings(options.set)})


def load_chosen_card(root: Path, options: argparse.Namespace) -> "MachineCard":
    """Return the machine card that --machine names."""
    from harness.spec.machine_card import load_machine_card

    return load_machine_card(root, options.machine)


def make_graph_lookup(root: Path, options: argparse.Namespace) -> "GraphLookup":
    """Return a function that looks up what is known about a graph: with --twins only what its card says."""
    from harness.experiment.known_graph import KnownGraph, facts_of_card, look_up_graph
    from harness.store.catalog import load_card

    if options.twins:
        return cache(lambda choice: KnownGraph(facts_of_card(load_card(root, choice.name)), None))
    return cache(lambda choice: look_up_graph(root, choice, from_card=options.from_card))


def make_predictor(root: Path, options: argparse.Namespace) -> "Predictor":
    """Return a function that predicts an epoch. With --twins it extrapolates sizes that depend on a partition."""
    from harness.experiment.known_graph import admit_on_twins
    from harness.predict.prediction import CachingPredictor, Prediction
    from harness.predict.twins import TWINS, predict_from_twins
    from harness.strategy import Ready

    predict = CachingPredictor()
    if not options.twins:
        return predict
    if len(options.twins) != TWINS:
        raise UserError(f"--twins takes {TWINS} scales: fewer would not show where a size stops growing.")

    def predict_on_twins(ready: Ready, card: "MachineCard", ranks: Sequence[int] | None = None) -> Prediction:
        strategy = ready.strategy
        if strategy.partitioned_over is None:
            return predict(ready, card, ranks)
        return predict_from_twins(
            strategy, card, admit_on_twins(root, strategy, options.twins, print_progress), ranks
        )

    return predict_on_twins


def describe_sizes(options: argparse.Namespace, facts: "Facts") -> str:
    """Return a description of where the sizes come from."""
    twins = (
        f"; those that depend on a partition from its twins of {', '.join(options.twins)}"
        if options.twins
        else ""
    )
    return describe_size_source(facts) + twins
