"""harness predict and advise: the time of an epoch on a machine that need not be at hand, and the choice."""

import argparse
import os
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.cli.options import (
    Progress,
    Verbs,
    add_settings,
    add_verb,
    columns,
    paragraph,
    ranks,
    say,
    settings,
    several,
    show,
    sizes_of,
    whole,
)
from harness.errors import UserError
from harness.progress import report_steps
from harness.spec.plan import SCALES
from harness.spec.root import find_results_folder, find_root
from harness.spec.spec import format_grid

if TYPE_CHECKING:
    from harness.experiment.known_graph import GraphLookup
    from harness.predict.advice import Advice, Option, Predictor, TunedOption
    from harness.predict.prediction import Prediction
    from harness.spec.machine_card import MachineCard
    from harness.spec.spec import Spec
    from harness.strategy import Candidate, Facts, Ready

GB = 1 << 30
WITHIN = 60
"""The seconds in which advice is given, unless asked otherwise."""
PRINTING = 1.0
"""The seconds among these that are left for the answer itself."""
PROCESS_BYTES = 6 * GB
"""The memory that a process which predicts may take: of a built graph, results that ranks share, and caches."""


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
    time = advise.add_mutually_exclusive_group()
    time.add_argument(
        "--within",
        type=whole(1, 10**6),
        default=WITHIN,
        metavar="SECONDS",
        help=f"answer within this time, and name the strategies that take longer to predict (default: {WITHIN})",
    )
    time.add_argument("--all", action="store_true", help="predict every strategy, however long it takes")
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

    root = find_root(options.root)
    card, know, predicts = _card(root, options), _know(root, options), _predictor(root, options)
    check_card(card)
    rows, answers, page = list[tuple[str, ...]]([PREDICTED]), [], list[str]()
    with Progress() as on_step:
        for count in report_steps(options.ranks, lambda count: f"predicting {count} ranks", on_step):
            ready = _ready(root, options, know, count)
            strategy, predicted = ready.strategy, predicts(ready, card)
            rows.append((str(count), format_grid(strategy.spec.grid, " "), *cells_of(predicted, card)))
            page.append(paragraph(f"{count}: {_parts(predicted)}"))
            answers.append({"ranks": count, "grid": strategy.grid, **document_of(predicted)})
            if options.out:
                record_prediction(root, options.out, strategy.spec, strategy.facts, card, predicted)
    head = f"{options.strategy} on {options.dataset}, {card.name}; sizes {_sizes(options, strategy.facts)}"
    if strategy.partitioned_over and not (strategy.facts.exact or options.twins):
        page += ["", paragraph(BY_CARD)]
    told = "\n".join([head, "", columns(rows), "", "Where the time goes, by ranks", *page])
    show(options, answers, told)
    return 0


def _parts(predicted: "Prediction") -> str:
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in predicted.parts.items())


def _predict_experiment(options: argparse.Namespace) -> int:
    """Predicts the runs of an experiment; those that differ in their launch alone are one."""
    from harness.experiment.expand import expand
    from harness.experiment.experiment_file import load_experiment
    from harness.experiment.scales import select_scale
    from harness.predict.prediction import group_machine_variants
    from harness.registry import load_strategy
    from harness.spec.machine_card import load_machine_card
    from harness.strategy import Ready, admit

    root = find_root(options.root)
    know, predicts = _know(root, options), _predictor(root, options)
    specs = expand(root, select_scale(root, load_experiment(options.experiment), options.scale))
    firsts = (spec.model_copy(update={"launch": 0}) for spec in specs)
    different = {spec.label: spec for spec in group_machine_variants(firsts)}

    def predicted(spec: "Spec") -> PricedEpoch:
        card, graph = load_machine_card(root, spec.machine.name), know(spec.dataset)
        ready = Ready(admit(load_strategy(spec.strategy.name), spec, graph.facts), graph.blocks)
        return PricedEpoch(spec, graph.facts, card, predicts(ready, card))

    asked = {label: partial(predicted, spec) for label, spec in different.items()}
    table = priced_epochs(root, options.out, asked, "predicting", different)
    show(options, {"predicted": table.answers, "refused": table.refused}, table.page("No prediction"))
    return 0


class PricedEpoch(NamedTuple):
    """An epoch of a run on the links of a machine, and the run of ours that it emulates, if it does."""

    spec: "Spec"
    facts: "Facts"
    card: "MachineCard"
    predicted: "Prediction"
    emulates: str = ""


class PricedEpochs(NamedTuple):
    """Priced epochs as rows of a table and as documents, and the reasons of those that were refused."""

    rows: list[tuple[str, ...]]
    answers: list[dict[str, Any]]
    refused: dict[str, str]

    def page(self, none: str) -> str:
        """The table, and below the title `none` the refusals."""
        page = [columns([("run", "machine", *PREDICTED), *self.rows])] if self.rows else []
        lacking = (paragraph(f"{label}: {reason}") for label, reason in self.refused.items())
        page += ["\n".join([none, *lacking])] if self.refused else []
        return "\n\n".join(page)


def priced_epochs(
    root: Path,
    out: Path | None,
    asked: Mapping[str, Callable[[], PricedEpoch]],
    doing: str,
    specs: Mapping[str, "Spec"] | None = None,
) -> PricedEpochs:
    """Prices every epoch that is asked for, by label, and writes a record under `out`; of `specs` refusals too."""
    from harness.predict.predicted_record import record_prediction, record_refusal

    table = PricedEpochs([], [], {})
    if out:  # empty if all is refused: a workflow waits for the folder
        out.mkdir(parents=True, exist_ok=True)
    with Progress() as on_step:
        for label in report_steps(asked, lambda label: f"{doing} {label}", on_step):
            try:
                spec, facts, card, predicted, emulates = asked[label]()
            except UserError as refusal:
                table.refused[label] = str(refusal)
                if out and specs:
                    record_refusal(root, out, specs[label], str(refusal))
                continue
            cells = (str(spec.ranks), format_grid(spec.grid, " "), *cells_of(predicted, card))
            table.rows.append((spec.label, card.name, *cells))
            known = {"run": spec.label, "machine": card.name, "ranks": spec.ranks, "grid": spec.grid}
            table.answers.append({**known, **document_of(predicted)})
            if out:
                record_prediction(root, out, spec, facts, card, predicted, emulates)
    return table


PREDICTED = ("ranks", "grid", "epoch ms", "between", "waiting", "words", "peak GB", "limited by")


def cells_of(predicted: "Prediction", card: "MachineCard") -> tuple[str, ...]:
    """Everything of a prediction but its ranks and grid."""
    seconds, peak = predicted.seconds, predicted.peak_bytes / GB
    fits = card.memory_gb is None or peak <= card.memory_gb
    name = predicted.limited_by
    return (
        _short(1e3 * seconds.value),
        f"{_short(1e3 * seconds.low)} - {_short(1e3 * seconds.high)}",
        f"{100 * predicted.waiting / seconds.value:.0f} %",
        f"{predicted.words_received:.3g}",
        f"{peak:.3g}" if fits else f"{peak:.3g}: out of memory",
        f"{name.split('.')[1]} {100 * predicted.shares[name]:.0f} %",
    )


def _short(number: float) -> str:
    """Three digits, and all digits of a larger whole number."""
    return f"{number:.3g}" if number < 1000 else f"{number:.0f}"


def document_of(predicted: "Prediction") -> dict[str, Any]:
    return {
        "seconds": vars(predicted.seconds),
        "entries": [{**key._asdict(), "seconds": seconds} for key, seconds in predicted.entries.items()],
        "waiting": predicted.waiting,
        "words_received": predicted.words_received,
        "peak_bytes": predicted.peak_bytes,
        "shares": dict(predicted.shares),
    }


def _ready(root: Path, options: argparse.Namespace, know: "GraphLookup", count: int) -> "Ready":
    """The strategy as asked for, on so many ranks."""
    from harness.experiment.requests import make_spec
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
    from harness.experiment.requests import nest_settings

    asked = {"dataset.name": options.dataset, "ranks": count, "machine": options.machine}
    return nest_settings({**asked, **settings(options.set)})


def _card(root: Path, options: argparse.Namespace) -> "MachineCard":
    from harness.spec.machine_card import load_machine_card

    return load_machine_card(root, options.machine)


def _know(root: Path, options: argparse.Namespace) -> "GraphLookup":
    """What is known of the graph in an order: with twins, no more than its card tells."""
    from harness.experiment.known_graph import KnownGraph, facts_of_card, look_up_graph
    from harness.store.catalog import load_card

    if options.twins:
        return cache(lambda choice: KnownGraph(facts_of_card(load_card(root, choice.name)), None))
    return cache(lambda choice: look_up_graph(root, choice, from_card=options.from_card))


def _predictor(root: Path, options: argparse.Namespace) -> "Predictor":
    """Predicts from the twins of the graph, if there are any, what depends on the parts of the vertices."""
    from harness.experiment.known_graph import admit_on_twins
    from harness.predict.prediction import CachingPredictor, Prediction
    from harness.predict.twins import TWINS, predict_from_twins
    from harness.strategy import Ready

    predict = CachingPredictor()
    if not options.twins:
        return predict
    if len(options.twins) != TWINS:
        raise UserError(f"--twins takes {TWINS} scales: two would not tell where a size stops growing.")

    def from_twins(ready: Ready, card: "MachineCard", ranks: Sequence[int] | None = None) -> Prediction:
        strategy = ready.strategy
        if strategy.partitioned_over is None:
            return predict(ready, card, ranks)
        return predict_from_twins(strategy, card, admit_on_twins(root, strategy, options.twins, say), ranks)

    return from_twins


def _sizes(options: argparse.Namespace, facts: "Facts") -> str:
    """Where the sizes are from, for a headline."""
    twins = f"; those of parts from its twins of {', '.join(options.twins)}" if options.twins else ""
    return sizes_of(facts) + twins


def _advise(options: argparse.Namespace) -> int:
    began = monotonic()  # the libraries below take seconds to import, which count
    from harness.predict.advice import advise, tune_options
    from harness.predict.prediction import check_card
    from harness.spec.dataset import DatasetChoice
    from harness.validation import validate

    root = find_root(options.root)
    card, know = _card(root, options), _know(root, options)
    check_card(card)
    if options.memory is not None:
        card = card.model_copy(update={"memory_gb": options.memory})
    facts = know(validate(DatasetChoice, {"name": options.dataset}, "--dataset")).facts
    seconds = inf if options.all else max(0.0, options.within - PRINTING - (monotonic() - began))
    # Twins may have to be built first, which must not be ended.
    time = (inf, 0) if options.twins else (seconds, _processes())
    with Progress() as progress:
        found = _candidates(root, options, know, facts)
        advice = advise(found, card, _predictor(root, options), *time, progress)
    document, page = _advice_document(advice, card), _advice_page(options, facts, card, advice)
    if options.tune:
        measured = list(tune_options(root, find_results_folder(root) / "runs", options.tune, advice, say))
        rows = [TUNED, *map(_tuned_row, measured)]
        document["tuned"] = [each._asdict() for each in measured]
        page += f"\n\nPredicted for {card.name}, measured on this machine\n\n{columns(rows)}"
    show(options, document, page)
    return 0


TUNED = ("strategy", "grid", "predicted ms", "measured ms", "predicted over measured", "")


def _tuned_row(each: "TunedOption") -> tuple[str, ...]:
    measured = f"{1e3 * each.measured:.3g}" if each.measured else ""
    ratio = f"{each.predicted / each.measured:.2f}" if each.measured else ""
    why = "" if each.measured else each.why
    return each.strategy, each.grid, f"{1e3 * each.predicted:.3g}", measured, ratio, why


def _processes() -> int:
    """The processes that predict at the same time: one per core, as far as there is memory."""
    from harness.results.parquet import find_available_bytes

    return max(1, min(len(os.sched_getaffinity(0)), find_available_bytes() // PROCESS_BYTES))


def _candidates(
    root: Path, options: argparse.Namespace, know: "GraphLookup", facts: "Facts"
) -> "Iterator[Candidate]":
    """Every strategy that promises enough, on the grids that admit it."""
    from harness.api import Wish, candidates
    from harness.predict.advice import list_accepted_promises

    request = _request(options, options.ranks)
    if options.model:
        request["model"] = {**request.get("model", {}), "kind": options.model}
    wish = Wish(list_accepted_promises(options.accuracy), options.partition, "the options")
    return candidates(root, request, know, facts, wish)


def _advice_document(advice: "Advice", card: "MachineCard") -> dict[str, Any]:
    from harness.predict.advice import find_ties

    def listed(choices: "Sequence[Option]", *, ranked: bool = True) -> list[dict[str, Any]]:
        tied = list(find_ties(choices, card)) if ranked else [False] * len(choices)
        return [
            {
                "strategy": each.strategy.name,
                "grid": each.strategy.grid,
                "ties_with_the_first": tie,
                "seconds_per_vertex": each.cost,
                **document_of(each.prediction),
            }
            for each, tie in zip(choices, tied, strict=True)
        ]

    return {
        "full_graph": listed(advice.full_graph),
        "mini_batch": listed(advice.mini_batch),
        "too_large": listed(advice.too_large, ranked=False),
        "refused": [vars(refusal) for refusal in advice.refused],
        "too_slow": [
            {"strategy": name, "estimated_seconds": seconds} for name, seconds in advice.too_slow.items()
        ],
        "partly": [{"strategy": name, **partly._asdict()} for name, partly in advice.partly.items()],
    }


def _advice_page(options: argparse.Namespace, facts: "Facts", card: "MachineCard", advice: "Advice") -> str:
    lines = [f"{options.dataset} on {card.name}, {options.ranks} ranks; sizes {_sizes(options, facts)}"]
    for name, choices in (
        ("The full graph, by the time of an epoch", advice.full_graph),
        ("Mini-batches, by the time for each training vertex", advice.mini_batch),
    ):
        if choices:
            lines += ["", name, "", columns(list(_advised(choices, card))), "", *_turning(choices, card)]
    if advice.full_graph or advice.mini_batch:
        lines += ["", paragraph(LEGEND)]
    if not (facts.exact or options.twins):
        lines += ["", paragraph(BY_CARD)]
    for each in advice.too_large:
        peak = f"{each.prediction.peak_bytes / GB:.3g} GB of {card.memory_gb:g}"
        lines += ["", f"{each.strategy.name}: too large, {peak} on its smallest grid"]
    lines += _unpredicted(options, advice)
    if advice.refused:
        reasons = defaultdict[str, list[str]](list)
        for refusal in advice.refused:
            reasons[refusal.reason].append(refusal.strategy)
        lines += ["", "No prediction"]
        lines += [paragraph(f"{', '.join(names)}: {reason}") for reason, names in reasons.items()]
    return "\n".join(lines)


def _unpredicted(options: argparse.Namespace, advice: "Advice") -> list[str]:
    """The strategies that were not predicted in time, in part or at all, and the command that includes them."""
    lines = list[str]()
    if advice.partly:
        lines += [
            "",
            f"Predicted in part within {options.within} s: the best grids so far, some by one rank alone",
        ]
        lines += [f"  {name}: {predicted} of {of} grids" for name, (predicted, of) in advice.partly.items()]
    if left_out := [name for name in advice.too_slow if name not in advice.partly]:
        lines += ["", f"Left out, as there was no time to predict them within {options.within} s"]
        lines += [f"  {name}: about {advice.too_slow[name]:.0f} s" for name in left_out]
    if advice.too_slow:
        lines += ["This command includes all grids of all strategies:", f"  {_command_for_all(options)}"]
    return lines


def _command_for_all(options: argparse.Namespace) -> str:
    """The same command with --all."""
    words = ["harness", "advise", "--dataset", options.dataset, "--machine", options.machine]
    words += ["--ranks", str(options.ranks)]
    for name in ("root", "model", "memory", "accuracy", "partition", "tune"):
        if (value := getattr(options, name)) is not None:
            words += [f"--{name}", str(value)]
    for setting in options.set:
        words += ["--set", setting]
    words += [f"--{name.replace('_', '-')}" for name in ("from_card", "json") if getattr(options, name)]
    return shlex.join([*words, "--all"])


LEGEND = (
    "= ties with the first: the constants within their intervals, or what the model leaves out, can turn the order. "
    "~ approximates serial training and is no unbiased estimate of it (--accuracy leaves it out). waits: the share "
    "of the epoch in which a rank waits for messages. words: received by a rank in an epoch. GB: the peak of memory. "
    "limited by: the constant of the machine's card that most of the epoch hangs on."
)
BY_CARD = (
    "A card does not tell where edges lie. What depends on the edges is predicted as for a random order of the "
    "vertices, so strategies that send the boundary of a part are an upper bound: a good partition needs fewer rows. "
    "Build the graph and ask with --partition metis, or name three twins of it (--twins)."
)


def _advised(choices: "Sequence[Option]", card: "MachineCard") -> "Iterator[tuple[str, ...]]":
    from harness.predict.advice import find_ties

    batches = choices[0].mini_batches
    cost = ["ns/vertex"] if batches else []
    yield ("", "strategy", "grid", "ms", "between", *cost, "waits", "words", "GB", "limited by")
    for choice, tie in zip(choices, find_ties(choices, card), strict=True):
        epoch, between, *others = cells_of(choice.prediction, card)
        vertex = [_short(1e9 * choice.cost)] if batches else []
        name = f"{choice.strategy.name}{' ~' * (choice.strategy.effective_promise == 'approximate')}"
        grid = format_grid(choice.strategy.spec.grid, " ")
        yield "=" if tie else "", name, grid, epoch, between, *vertex, *others


def _turning(choices: "Sequence[Option]", card: "MachineCard") -> list[str]:
    """What would change the first choice."""
    from harness.predict.advice import compare_options

    first, *rest = choices
    other = next((each for each in rest if each.strategy.name != first.strategy.name), None)
    if other is None:
        return []
    constants = compare_options(first, other, card)[1]
    if not constants:
        return [f"No constant of the card alone puts {other.strategy.name} before {first.strategy.name}."]
    each = "each alone " if len(constants) > 1 else "alone "
    return [
        paragraph(
            f"Within their intervals, {', '.join(constants)} {each}can put {other.strategy.name} before "
            f"{first.strategy.name}."
        )
    ]
