"""harness predict and advise: the time of an epoch on a machine that need not be at hand, and the choice."""

import argparse
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.cli.options import (
    Verbs,
    add_settings,
    add_verb,
    columns,
    ranks,
    say,
    settings,
    several,
    show,
    sizes_of,
    whole,
)
from harness.errors import UserError
from harness.spec.plan import SCALES
from harness.spec.root import project_root, results_folder
from harness.spec.spec import grid_text

if TYPE_CHECKING:
    from harness.experiment.known_graph import KnowGraph
    from harness.predict.advice import Advice, Option, Predictor
    from harness.predict.prediction import Prediction
    from harness.spec.machine_card import MachineCard
    from harness.strategy import Candidate, Facts, Ready

GB = 1 << 30


def add_verbs(verbs: Verbs) -> None:
    predict = add_verb(
        verbs,
        "predict",
        _predict,
        "Predict the time of an epoch on a machine that has a card, before anything runs there.",
        "Replays the strategy's own code on shapes, prices its kernels and calls by the constants of the card "
        "config/machines/NAME.yaml, and plays the ranks against each other. The interval is that of the constants. "
        "With --experiment, predicts every run that the experiment lists, each on the machine that the run names.",
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
        help="of an experiment: the runs of the paper (default), those for one machine, those that are emulated, or "
        "tiny ones",
    )
    predict.add_argument(
        "--ranks", type=several(ranks), default=[1], metavar="A,B,C", help="the numbers of ranks (default 1)"
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
    _add_common(predict, required=False)
    advise = add_verb(
        verbs,
        "advise",
        _advise,
        "Say which strategy and grid are the fastest for a graph on a machine.",
        "Predicts every strategy on every grid of so many ranks, with the same model, and ranks full-graph training by "
        "the time of an epoch and mini-batch training by the time for each training vertex.",
    )
    advise.add_argument("--ranks", type=ranks, required=True, metavar="P", help="the number of ranks")
    advise.add_argument("--model", metavar="KIND", help="gcn, sage or gat (default: gcn)")
    advise.add_argument(
        "--memory",
        type=float,
        metavar="GB",
        help="the memory of a rank (default: that of the machine's card)",
    )
    advise.add_argument(
        "--accuracy",
        choices=("exact", "estimator"),
        help="only strategies whose numbers are those of serial training, or an unbiased estimate of these too",
    )
    advise.add_argument(
        "--partition",
        metavar="NAME",
        help="the partition for strategies that split the vertices into parts (default: blocks of equal size)",
    )
    advise.add_argument(
        "--tune",
        type=whole(1, 100),
        metavar="N",
        help="run the N best of each list here for a few epochs, and say where prediction and measurement part",
    )
    _add_common(advise)


def _add_common(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    parser.add_argument(
        "--dataset",
        required=required,
        metavar="NAME",
        help="a graph: its store if it is built, else its card",
    )
    parser.add_argument(
        "--machine", default="local", metavar="NAME", help="the machine card (default: local)"
    )
    parser.add_argument(
        "--from-card", action="store_true", help="take the graph's sizes from its card even if it is built"
    )
    parser.add_argument(
        "--twins",
        type=several(str),
        default=[],
        metavar="1/256,1/64,1/16",
        help="the scales of three twins, which are built: strategies that split the vertices into parts have "
        "their sizes from these",
    )
    add_settings(parser)


def _predict(options: argparse.Namespace) -> int:
    if options.experiment and not (options.strategy or options.dataset):
        return _predict_experiment(options)
    if options.experiment or not (options.strategy and options.dataset):
        raise UserError("predict takes either --strategy NAME --dataset NAME or --experiment FILE.")
    return _predict_strategy(options)


def _predict_strategy(options: argparse.Namespace) -> int:
    from harness.predict.predicted_record import record_prediction
    from harness.predict.prediction import check_card

    root = project_root(options.root)
    card, know, predicts = _card(root, options), _know(root, options), _predictor(root, options)
    check_card(card)
    rows, answers = list[tuple[str, ...]]([PREDICTED]), []
    for count in options.ranks:
        ready = _ready(root, options, know, count)
        strategy, predicted = ready.strategy, predicts(ready, card)
        rows.append((str(count), grid_text(strategy.spec.grid), *cells_of(predicted, card)))
        answers.append({"ranks": count, "grid": strategy.grid, **document_of(predicted)})
        if options.out:
            record_prediction(root, options.out, strategy.spec, strategy.facts, card, predicted)
    head = f"{options.strategy} on {options.dataset}, {card.name}; sizes {_sizes(options, strategy.facts)}"
    show(options, answers, f"{head}\n\n{columns(rows)}")
    return 0


def _predict_experiment(options: argparse.Namespace) -> int:
    """Predicts the runs of an experiment; those that differ in their launch alone are one."""
    from harness.experiment.expand import expand, load_experiment
    from harness.experiment.scales import at_scale
    from harness.predict.predicted_record import record_prediction
    from harness.registry import load_strategy
    from harness.spec.machine_card import load_machine_card
    from harness.strategy import Ready, admit

    root = project_root(options.root)
    know, predicts = _know(root, options), _predictor(root, options)
    specs = expand(root, at_scale(root, load_experiment(options.experiment), options.scale))
    different = {spec.run_id: spec for spec in (spec.model_copy(update={"launch": 0}) for spec in specs)}
    rows, answers = list[tuple[str, ...]]([("run", "machine", *PREDICTED)]), list[dict[str, Any]]()
    refused = dict[str, str]()
    for number, spec in enumerate(different.values(), 1):
        say(f"predicting {number} of {len(different)}: {spec.label}")
        try:
            card, graph = load_machine_card(root, spec.machine.name), know(spec.dataset)
            ready = Ready(admit(load_strategy(spec.strategy.name), spec, graph.facts), graph.blocks)
            predicted = predicts(ready, card)
        except UserError as refusal:
            refused[spec.label] = str(refusal)
            continue
        cells = (str(spec.ranks), grid_text(spec.grid), *cells_of(predicted, card))
        rows.append((spec.label, card.name, *cells))
        known = {"run": spec.label, "machine": card.name, "ranks": spec.ranks, "grid": spec.grid}
        answers.append({**known, **document_of(predicted)})
        if options.out:
            record_prediction(root, options.out, spec, graph.facts, card, predicted)
    page = [columns(rows)] if answers else []
    page += ["No prediction", columns(list(refused.items()))] if refused else []
    show(options, {"predicted": answers, "refused": refused}, "\n\n".join(page))
    return 0


PREDICTED = ("ranks", "grid", "epoch ms", "between", "waiting", "words", "peak GB", "limited by")


def cells_of(predicted: "Prediction", card: "MachineCard") -> tuple[str, ...]:
    """Everything of a prediction but its ranks and grid."""
    seconds, peak = predicted.seconds, predicted.peak_bytes / GB
    fits = card.memory_gb is None or peak <= card.memory_gb
    name = predicted.limited_by
    return (
        f"{1e3 * seconds.value:.3g}",
        f"{1e3 * seconds.low:.3g} - {1e3 * seconds.high:.3g}",
        f"{100 * predicted.waiting / seconds.value:.0f} %",
        f"{predicted.words_received:.3g}",
        f"{peak:.3g}" if fits else f"{peak:.3g}: out of memory",
        f"{name}, {100 * predicted.shares[name]:.0f} %",
    )


def document_of(predicted: "Prediction") -> dict[str, Any]:
    return {
        "seconds": vars(predicted.seconds),
        "entries": [{**key._asdict(), "seconds": seconds} for key, seconds in predicted.entries.items()],
        "waiting": predicted.waiting,
        "words_received": predicted.words_received,
        "peak_bytes": predicted.peak_bytes,
        "shares": dict(predicted.shares),
    }


def _ready(root: Path, options: argparse.Namespace, know: "KnowGraph", count: int) -> "Ready":
    """The strategy as asked for, on so many ranks."""
    from harness.experiment.defaults import make_spec
    from harness.registry import load_strategy
    from harness.strategy import Ready, admit

    request = _request(options, count)
    request["strategy"] = {**request.get("strategy", {}), "name": options.strategy}
    if options.grid:
        request["grid"] = options.grid
    spec = make_spec(root, request, "the options")
    graph = know(spec.dataset)
    return Ready(admit(load_strategy(options.strategy), spec, graph.facts), graph.blocks)


def _request(options: argparse.Namespace, count: int) -> dict[str, Any]:
    from harness.experiment.defaults import nested

    asked = {"dataset.name": options.dataset, "ranks": count, "machine": options.machine}
    return nested({**asked, **settings(options.set)})


def _card(root: Path, options: argparse.Namespace) -> "MachineCard":
    from harness.spec.machine_card import load_machine_card

    return load_machine_card(root, options.machine)


def _know(root: Path, options: argparse.Namespace) -> "KnowGraph":
    """What is known of the graph in an order: with twins, no more than its card tells."""
    from harness.experiment.known_graph import KnownGraph, facts_of_card, known_graph
    from harness.store.catalog import load_card

    if options.twins:
        return cache(lambda choice: KnownGraph(facts_of_card(load_card(root, choice.name)), None))
    return cache(lambda choice: known_graph(root, choice, from_card=options.from_card))


def _predictor(root: Path, options: argparse.Namespace) -> "Predictor":
    """Predicts from the twins of the graph, if there are any, what depends on the parts of the vertices."""
    from harness.experiment.known_graph import on_twins
    from harness.predict.prediction import Prediction, predict
    from harness.predict.twins import TWINS, predict_from_twins
    from harness.strategy import Ready

    if not options.twins:
        return predict
    if len(options.twins) != TWINS:
        raise UserError(f"--twins takes {TWINS} scales: two would not tell where a size stops growing.")

    def from_twins(ready: Ready, card: "MachineCard", ranks: Sequence[int] | None = None) -> Prediction:
        strategy = ready.strategy
        if strategy.partitioned_over is None:
            return predict(ready, card, ranks)
        return predict_from_twins(strategy, card, on_twins(root, strategy, options.twins, say), ranks)

    return from_twins


def _sizes(options: argparse.Namespace, facts: "Facts") -> str:
    """Where the sizes are from, for a headline."""
    twins = f"; those of parts from its twins of {', '.join(options.twins)}" if options.twins else ""
    return sizes_of(facts) + twins


TUNING_EPOCHS = 5


BATCH = 1024
"""The mini-batch of advice, unless training.batch is given."""


def _advise(options: argparse.Namespace) -> int:
    from harness.predict.advice import advise
    from harness.predict.prediction import check_card
    from harness.spec.dataset import DatasetChoice
    from harness.validation import validated

    root = project_root(options.root)
    card, know = _card(root, options), _know(root, options)
    check_card(card)
    if options.memory is not None:
        card = card.model_copy(update={"memory_gb": options.memory})
    facts = know(validated(DatasetChoice, {"name": options.dataset}, "--dataset")).facts
    advice = advise(_candidates(root, options, know, facts), card, _predictor(root, options))
    document, page = _advice_document(advice), _advice_page(options, facts, card, advice)
    if options.tune:
        tuned = list(_tuned(root, options.tune, advice))
        rows = [TUNED, *(each.row() for each in tuned)]
        document["tuned"] = [each._asdict() for each in tuned]
        page += f"\n\nMeasured here\n\n{columns(rows)}"
    show(options, document, page)
    return 0


TUNED = ("strategy", "grid", "predicted ms", "measured ms", "predicted over measured", "")


class Tuned(NamedTuple):
    """An option that was predicted and run; no seconds if the run did not succeed."""

    strategy: str
    grid: str
    predicted: float
    measured: float | None
    why: str

    def row(self) -> tuple[str, ...]:
        ran = self.measured is not None
        measured = f"{1e3 * self.measured:.3g}" if self.measured else ""
        ratio = f"{self.predicted / self.measured:.2f}" if self.measured else ""
        return (
            self.strategy,
            self.grid,
            f"{1e3 * self.predicted:.3g}",
            measured,
            ratio,
            "" if ran else self.why,
        )


def _tuned(root: Path, count: int, advice: "Advice") -> "Iterator[Tuned]":
    """Runs the first options of each list for a few epochs; a run that has a record is not repeated."""
    from harness.launch.launch import series
    from harness.results.record import read_record

    best = [*advice.full_graph[:count], *advice.mini_batch[:count]]
    specs = [option.strategy.spec for option in best]
    shorter = [
        spec.model_copy(update={"training": spec.training.model_copy(update={"epochs": TUNING_EPOCHS})})
        for spec in specs
    ]
    outcomes = series(shorter, root, results_folder(root) / "runs", say, fresh=False)
    for option, outcome in zip(best, outcomes, strict=True):
        summary = read_record(outcome.folder).record["summary"] if outcome.folder else {}
        told = option.strategy.name, option.grid, option.prediction.seconds.value
        yield Tuned(*told, summary.get("epoch_seconds_median"), outcome.why or "the run did not succeed")


def _candidates(
    root: Path, options: argparse.Namespace, know: "KnowGraph", facts: "Facts"
) -> "Iterator[Candidate]":
    """Every strategy that promises enough, on the grids that admit it."""
    from harness.experiment.defaults import on_all_grids
    from harness.predict.advice import promises
    from harness.registry import load_strategy, registered

    for point in registered():
        kind, request = load_strategy(point.name), _request(options, options.ranks)
        if kind.promise not in promises(options.accuracy):
            continue
        say(f"predicting {point.name}")
        if options.model:
            request["model"] = {**request.get("model", {}), "kind": options.model}
        if kind.mini_batches:
            batch = {"batch": min(BATCH, facts.vertices)}
            request["training"] = {**batch, **request.get("training", {})}
        if options.partition and kind.partitioned_over:
            request["dataset"] = {**request["dataset"], "partition": options.partition}
        yield on_all_grids(root, point.name, request, know, "the options")


def _advice_document(advice: "Advice") -> dict[str, Any]:
    def listed(choices: "Sequence[Option]") -> list[dict[str, Any]]:
        return [
            {"strategy": each.strategy.name, "grid": each.strategy.grid, **document_of(each.prediction)}
            for each in choices
        ]

    return {
        "full_graph": listed(advice.full_graph),
        "mini_batch": listed(advice.mini_batch),
        "too_large": listed(advice.too_large),
        "refused": [vars(refusal) for refusal in advice.refused],
    }


def _advice_page(options: argparse.Namespace, facts: "Facts", card: "MachineCard", advice: "Advice") -> str:
    lines = [f"{options.dataset} on {card.name}, {options.ranks} ranks; sizes {_sizes(options, facts)}"]
    title = ("strategy", "grid", *PREDICTED[2:], "")
    for name, choices in (
        ("The full graph, by the time of an epoch", advice.full_graph),
        ("Mini-batches, by the time for each training vertex", advice.mini_batch),
    ):
        if choices:
            lines += ["", name, "", columns([title, *_advised(choices, card)]), *_turning(choices, card)]
    for each in advice.too_large:
        peak = each.prediction.peak_bytes / GB
        lines += [
            "",
            f"{each.strategy.name}: too large, {peak:.3g} GB of {card.memory_gb:g} on its smallest grid",
        ]
    if advice.refused:
        rows = [(refusal.strategy, refusal.reason) for refusal in advice.refused]
        lines += ["", "No prediction", "", columns(rows)]
    return "\n".join(lines)


def _advised(choices: "Sequence[Option]", card: "MachineCard") -> "Iterator[tuple[str, ...]]":
    from harness.predict.advice import ties

    for choice, tie in zip(choices, ties(choices, card), strict=True):
        cells = cells_of(choice.prediction, card)
        yield choice.strategy.name, choice.grid, *cells, "ties with the first" if tie else ""


def _turning(choices: "Sequence[Option]", card: "MachineCard") -> list[str]:
    """What would change the first choice."""
    from harness.predict.advice import turned_by

    first = choices[0]
    other = next((each for each in choices if each.strategy.name != first.strategy.name), None)
    if other is None:
        return []
    _, constants = turned_by(first, other, card)
    if not constants:
        return [f"No constant of the card alone puts {other.strategy.name} before {first.strategy.name}."]
    return [
        f"Within their intervals, {', '.join(constants)} alone can put {other.strategy.name} before "
        f"{first.strategy.name}."
    ]
