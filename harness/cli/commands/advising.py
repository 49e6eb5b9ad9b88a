"""harness advise: finds the fastest strategies and grids for a graph on a machine."""

import os
import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY
from dataclasses import dataclass as plain_dataclass
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from harness.base.formatting import GB, format_bytes, format_count, format_interval, format_seconds
from harness.cli.commands.answer import Answer
from harness.cli.commands.graph_options import CARD_NOTE, PredictionRequest
from harness.cli.commands.output import Block, Command, FactList, Headline, Table, TableColumn, View
from harness.cli.commands.predicting import COST_COLUMNS, EpochPrediction, make_document, name_constant
from harness.cli.commands.request import CONFIG, DatasetName, MachineName, OptionStyle, Ranks
from harness.cli.commands.run_facts import describe_shared_cores
from harness.cli.commands.verb import Reporter, verb

if TYPE_CHECKING:
    import pandas as pd

    from harness.prediction.advice import Advice, FewerRanks, PartitionChoice, TunedOption
    from harness.prediction.advice import Option as AdvisedOption
    from harness.prediction.card_status import CardStatus
    from harness.spec.machine_card import MachineCard
    from harness.strategy import Facts

DEFAULT_SECONDS = 60
PROCESS_BYTES = 6 * GB
"""The memory that a predicting process may need, for a built graph, results that ranks share, and caches."""
SHOWN_OPTIONS = 8
"""The number of options of each list that are printed without --all."""


@dataclass(frozen=True, config=CONFIG)
class AdviseRequest(PredictionRequest):
    """The graph, the number of ranks and the machine, and what is accepted."""

    dataset: DatasetName
    """The graph. Its sizes are counted in its store if it is built, and otherwise taken from its card."""
    ranks: Ranks
    """The number of ranks. Fewer ranks are compared with it."""
    machine: MachineName = "local"
    """The machine card."""
    _: KW_ONLY
    model: Annotated[Literal["gcn", "sage", "gat"] | None, OptionStyle(metavar="KIND")] = None
    """The model (default: gcn)."""
    memory: Annotated[float | None, Field(gt=0), OptionStyle(metavar="GB")] = None
    """The memory of a rank (default: the memory on the machine's card)."""
    accuracy: Literal["exact", "estimator"] | None = None
    """The required result: exact for strategies that compute what serial training computes, or estimator to accept also
    unbiased estimates of it."""
    partition: Annotated[str | None, OptionStyle(metavar="NAME")] = None
    """The partition for strategies that split the vertices into parts (default: blocks of equal size)."""
    tune: Annotated[int | None, Field(ge=1, le=100), OptionStyle(metavar="N")] = None
    """Run the N best of each list on this machine for a few epochs, and compare prediction and measurement."""
    within: Annotated[int, Field(ge=1, le=10**6), OptionStyle(metavar="SECONDS")] = DEFAULT_SECONDS
    """The most work of all predictions, in seconds of a core as they are estimated before. The same request has the
    same answer on any machine. What exceeds it is only listed."""
    exhaustive: bool = False
    """Predict every strategy on every grid, however long it takes."""

    def make_run_request(self) -> dict[str, Any]:
        """Return the request of a run without its strategy and grid."""
        request = self.nest_settings(
            {"dataset.name": self.dataset, "ranks": self.ranks, "machine": self.machine}
        )
        if self.model:
            request["model"] = {**request.get("model", {}), "kind": self.model}
        return request


OPTION_COLUMNS = (
    TableColumn("name", "strategy"),
    *COST_COLUMNS[:2],
    TableColumn("seconds_per_vertex", "per vertex", "s", may_drop=True),
    *COST_COLUMNS[2:],
)
TUNED_COLUMNS = (
    TableColumn("strategy", "strategy"),
    TableColumn("grid", "--grid"),
    TableColumn("predicted", "predicted", "s"),
    TableColumn("measured", "measured", "s"),
    TableColumn("ratio", "predicted / measured", "number", format="{:.2f}".format),
    TableColumn("why", "why", may_wrap=True),
)


@plain_dataclass(frozen=True)
class AdviseAnswer(Answer):
    """The options of all strategies, the fastest first, and the strategies without an option."""

    request: AdviseRequest
    advice: "Advice"
    card: "MachineCard"
    facts: "Facts"
    tuned: Sequence["TunedOption"]

    def to_frame(self) -> "pd.DataFrame":
        """Return a data frame with a row for each option, the fastest first, and for each strategy without one."""
        return self.advice.to_frame()

    def to_document(self) -> Any:
        advice, status = self.advice, self.advice.card_status
        document = {
            "assumed": self._assumptions,
            "card": status._asdict() if status else None,
            "full_graph": self._list_documents(advice.full_graph),
            "mini_batch": self._list_documents(advice.mini_batch),
            "fewer_ranks": [
                {
                    "ranks": fewer.ranks,
                    "mini_batches": fewer.mini_batches,
                    "option": self._make_document(fewer.option) if fewer.option else None,
                    "reason": fewer.reason,
                    "speedup": fewer.speedup,
                    "is_tied": fewer.is_tied,
                }
                for fewer in advice.fewer_ranks
            ],
            "partitions": [
                {
                    "strategy": choice.strategy,
                    "assumed": choice.assumed,
                    "other": choice.other,
                    "speedup": choice.speedup,
                    "reason": choice.reason,
                }
                for choice in advice.partitions
            ],
            "too_large": [self._make_document(option) for option in advice.too_large],
            "refused": [vars(refusal) for refusal in advice.refused],
            "too_slow": [
                {"strategy": name, "estimated_seconds": seconds} for name, seconds in advice.too_slow.items()
            ],
            "partly": [{"strategy": name, **partly._asdict()} for name, partly in advice.partly.items()],
        }
        return {**document, "tuned": [each._asdict() for each in self.tuned]} if self.tuned else document

    def _list_documents(self, options: Sequence["AdvisedOption"]) -> list[dict[str, Any]]:
        return [
            {**self._make_document(option), "ties_with_the_first": tie}
            for option, tie in zip(options, self._find_ties(options), strict=True)
        ]

    def _make_document(self, option: "AdvisedOption") -> dict[str, Any]:
        return {
            "strategy": option.strategy.name,
            "grid": option.strategy.grid,
            "seconds_per_vertex": option.cost,
            "command": shlex.join(option.command),
            **make_document(option.prediction),
        }

    def _find_ties(self, options: Sequence["AdvisedOption"]) -> list[bool]:
        from harness.prediction.advice import find_ties

        return list(find_ties(options, self.card)) if options else []

    @property
    def _assumptions(self) -> str:
        """What the predictions assume, by the first option; empty if there is none."""
        options = [*self.advice.full_graph, *self.advice.mini_batch, *self.advice.too_large]
        return options[0].assumptions.describe() if options else ""

    def lay_out(self, view: View) -> Iterator[Block]:
        request, advice, status = self.request, self.advice, self.advice.card_status
        case = f"{request.dataset} on {self.card.name}, up to {format_count(request.ranks, 'rank')}"
        facts = [("Predicted", f"{case}: {self._assumptions}" if self._assumptions else case)]
        if decision := self._decide():
            yield Headline(
                f"Train on {format_count(decision.strategy.spec.ranks, 'rank')} with {_describe(decision)}"
            )
            yield Command(shlex.join(decision.command))
        else:
            yield Headline("No strategy is known to train this on these ranks (--why)")
        facts += [*self._list_answers(), *(_list_errors(status) if status else ())]
        if shared := self._describe_shared_cores():
            facts.append(("Cores", shared))
        yield FactList(facts)
        for options, title in (
            (advice.full_graph, "Full graph"),
            (advice.mini_batch, "Mini-batches, by the time for a training vertex"),
        ):
            yield Table(OPTION_COLUMNS, list(self._make_rows(options)), title, SHOWN_OPTIONS)
            if view.why and options:
                yield self._explain_order(options)
        yield self._explain_marks()
        yield from self._lay_out_others(view)
        if self.tuned:
            yield Table(
                TUNED_COLUMNS,
                list(map(_make_tuned_row, self.tuned)),
                "Predicted, and measured on this machine",
            )
            yield self._judge_tuning()
        if view.verbose:
            yield f"Sizes {request.describe_sizes(self.facts)}."
            yield "" if self.facts.exact or request.twins else CARD_NOTE

    def _describe_shared_cores(self) -> str:
        """Return that ranks share cores; empty if they do not, if ranks have GPUs, and for a cluster's card."""
        card, ranks = self.card, self.request.ranks
        assert card.rates and card.links
        if card.rates.cores_per_node is None or card.slurm:
            return ""
        on_node = min(ranks, card.links.devices_per_node)
        return describe_shared_cores(on_node, card.threads_per_rank, card.rates.cores_per_node)

    def _decide(self) -> "AdvisedOption | None":
        """Return what to train: the fastest on any number of ranks, or what ties with it on the fewest ranks.

        Mini-batches are chosen only if no strategy can train on the full graph.
        """
        from harness.prediction.advice import choose_ranks

        advice = self.advice
        for options, mini_batches in ((advice.full_graph, False), (advice.mini_batch, True)):
            fewer = (each.option for each in self._select_fewer_ranks(mini_batches))
            if known := [*options[:1], *filter(None, fewer)]:
                return choose_ranks(known, self.card)
        return None

    def _select_fewer_ranks(self, mini_batches: bool) -> "list[FewerRanks]":
        """Return the comparisons with fewer ranks, of mini-batches or of the full graph."""
        return [each for each in self.advice.fewer_ranks if each.mini_batches == mini_batches]

    def _list_answers(self) -> Iterator[tuple[str, str]]:
        """Yield the best option of each kind, what fewer ranks would cost, and what another partition would change."""
        advice = self.advice
        kinds = (("Full graph", advice.full_graph, False), ("Mini-batches", advice.mini_batch, True))
        for name, options, mini_batches in kinds:
            if options:
                yield name, self._describe_best(options)
            if fewer := self._select_fewer_ranks(mini_batches):
                yield "Fewer ranks", describe_fewer(fewer, self.request.ranks)
        if advice.too_slow or advice.partly:
            predicted = {
                each.strategy.name for each in (*advice.full_graph, *advice.mini_batch, *advice.too_large)
            }
            left_out = [*advice.too_slow, *(f"{name} on other grids" for name in advice.partly)]
            strategies = format_count(len(predicted), "strategy", "strategies")
            yield "Best of", f"{strategies} that were predicted; --exhaustive adds {', '.join(left_out)}"
        yield from describe_partitions(advice.partitions)

    def _describe_best(self, options: Sequence["AdvisedOption"]) -> str:
        ties = sum(self._find_ties(options))
        close = f"; {ties} {'other is' if ties == 1 else 'others are'} too close to call" if ties else ""
        return f"{format_count(self.request.ranks, 'rank')}: {_describe(options[0])}{close}"

    def _make_rows(self, options: Sequence["AdvisedOption"]) -> Iterator[dict[str, Any]]:
        """Yield the rows of a table, with the marks of approximations and of ties after the names."""
        for option, tie in zip(options, self._find_ties(options), strict=True):
            strategy = option.strategy
            marks = " ~" * _is_approximate(option) + " tie" * tie
            epoch = EpochPrediction(strategy.spec, strategy.facts, self.card, option.prediction)
            yield {
                **epoch.to_row(),
                "name": f"{strategy.name}{marks}",
                "seconds_per_vertex": option.cost if option.mini_batches else None,
            }

    def _explain_marks(self) -> str:
        """Return what the marks that occur in the tables mean."""
        options = [*self.advice.full_graph[:SHOWN_OPTIONS], *self.advice.mini_batch[:SHOWN_OPTIONS]]
        marks = []
        if any(self._find_ties(self.advice.full_graph)) or any(self._find_ties(self.advice.mini_batch)):
            marks.append(
                "tie: the error of the model, or of a constant of the card, can make it the fastest."
            )
        if any(map(_is_approximate, options)):
            marks.append("~: approximates serial training (--accuracy leaves it out).")
        return " ".join(marks)

    def _explain_order(self, options: Sequence["AdvisedOption"]) -> str:
        """Return which constants of the card could make the best other strategy the fastest."""
        from harness.prediction.advice import compare_options

        first, *rest = options
        other = next((each for each in rest if each.strategy.name != first.strategy.name), None)
        if other is None:
            return ""
        constants = compare_options(first, other, self.card)[1]
        order = f"{other.strategy.name} faster than {first.strategy.name}"
        if not constants:
            return f"No single constant of the card, varied within its interval, makes {order}."
        names = " or ".join(map(name_constant, constants))
        return (
            f"Within {'their intervals' if len(constants) > 1 else 'its interval'}, {names} can make {order}."
        )

    def _lay_out_others(self, view: View) -> Iterator[Block]:
        """Yield the strategies without an option: their number, or with --why the reasons."""
        advice, limit = self.advice, f"{self.request.within} s of work"
        reasons = defaultdict[str, list[str]](list)
        for option in advice.too_large:
            reasons[f"too large: {format_bytes(option.prediction.peak_bytes)} on its smallest grid"].append(
                option.strategy.name
            )
        for refusal in advice.refused:
            reasons[refusal.reason].append(refusal.strategy)
        for name, (predicted, of) in advice.partly.items():
            reasons[f"predicted on {predicted} of {of} grids within {limit}"].append(name)
        for name, seconds in advice.too_slow.items():
            if name not in advice.partly:
                reasons[f"not within {limit}: one grid takes about {format_seconds(seconds)}"].append(name)
        rows = [{"strategies": ", ".join(names), "reason": reason} for reason, names in reasons.items()]
        count = sum(map(len, reasons.values()))
        if view.why:
            columns = [
                TableColumn("strategies", "strategies", may_wrap=True),
                TableColumn("reason", "reason", may_wrap=True),
            ]
            yield Table(columns, rows, "Without a complete prediction")
        elif rows:
            yield f"{count} {'strategy' if count == 1 else 'strategies'} without a complete prediction (--why)"
        if advice.too_slow or advice.partly:
            yield "To predict all grids of all strategies:"
            yield Command(self._make_exhaustive_command())

    def _judge_tuning(self) -> str:
        """Return how many measurements are within their intervals, and what to do if some are not."""
        options = {
            (option.strategy.name, option.grid): option.prediction.seconds
            for option in [*self.advice.full_graph, *self.advice.mini_batch]
        }
        measured = [
            (options[tuned.strategy, tuned.grid], tuned.measured) for tuned in self.tuned if tuned.measured
        ]
        outside = sum(not seconds.low <= time <= seconds.high for seconds, time in measured)
        if not outside:
            return "All measurements are within their intervals." if measured else ""
        return (
            f"{outside} of {format_count(len(measured), 'measurement')} outside the interval of the prediction: the "
            "machine was busy, or the card does not describe it (`harness doctor --calibrate` measures this machine)."
        )

    def _make_exhaustive_command(self) -> str:
        """Return the same command without a limit."""
        request = self.request
        words = ["harness", "advise", "--dataset", request.dataset, "--ranks", str(request.ranks)]
        words += ["--machine", request.machine]
        for name in ("root", "model", "memory", "accuracy", "partition", "tune"):
            if (value := getattr(request, name)) is not None:
                words += [f"--{name}", str(value)]
        for key, value in request.settings.items():
            words += ["--set", f"{key}={value}"]
        return shlex.join([*words, *(["--from-card"] if request.from_card else []), "--exhaustive"])


def _describe(option: "AdvisedOption") -> str:
    """Return a strategy on its grid with its predicted time."""
    seconds = option.prediction.seconds
    grid = f" --grid {option.grid}" if option.strategy.spec.ranks > 1 else ""
    each = f", {format_seconds(option.cost)} a training vertex" if option.mini_batches else ""
    time = f"{format_seconds(seconds.value)} an epoch ({format_interval(seconds.low, seconds.high)})"
    kind = " (approximates serial training)" if _is_approximate(option) else ""
    return f"{option.strategy.name}{kind}{grid}: {time}{each}"


def describe_fewer(fewer: Sequence["FewerRanks"], ranks: int) -> str:
    """Return the times on fewer ranks, and whether the requested ranks are worth it."""
    times = ", ".join(
        f"{format_count(each.ranks, 'rank')} "
        f"{format_seconds(each.option.prediction.seconds.value) if each.option else f'({each.reason})'}"
        for each in fewer
    )
    compared = next((each for each in fewer if each.speedup is not None), None)
    return times + (f"; {compared.describe(ranks)}" if compared else "")


WORTH_NAMING = 1.05
"""The least speedup by another partition that is named."""


def describe_partitions(choices: Sequence["PartitionChoice"]) -> Iterator[tuple[str, str]]:
    """Yield the strategies that another partition makes faster, or what it takes to predict that."""
    for choice in choices:
        if choice.speedup and choice.speedup >= WORTH_NAMING:
            yield (
                "Partition",
                f"{choice.strategy} is {choice.speedup:.2g} times as fast with --partition {choice.other}",
            )
    missing = next((choice for choice in choices if choice.speedup is None), None)
    if missing and missing is choices[0]:
        yield "Partition", f"{missing.other}: {missing.reason}"


def _list_errors(status: "CardStatus") -> Iterator[tuple[str, str]]:
    """Yield what is known about the errors of predictions with the card, and what an interval means."""
    yield "Machine card", status.description
    yield "Interval", status.coverage


def _is_approximate(option: "AdvisedOption") -> bool:
    return option.strategy.effective_promise == "approximate"


def _make_tuned_row(tuned: "TunedOption") -> dict[str, Any]:
    ratio = tuned.predicted / tuned.measured if tuned.measured else None
    return {**tuned._asdict(), "ratio": ratio, "why": None if tuned.measured else tuned.why}


@verb(AdviseRequest)
def advise(request: AdviseRequest, reporter: Reporter) -> AdviseAnswer:
    """Find the fastest strategies and grids for a graph on a machine.

    Predicts every strategy on its grids of P ranks with the same model. Ranks full-graph training by the time of an
    epoch, and mini-batch training by the time per training vertex, and compares the best of each with fewer ranks. The
    first line says on how many ranks to train: of times that are too close to call, those on the fewest ranks.
    """
    from harness.base.validation import validate
    from harness.experiment.candidates import AdviceQuery, list_candidates, make_admission, make_built_lookup
    from harness.prediction.advice import advise as rank_options
    from harness.prediction.advice import list_accepted_promises, tune_options
    from harness.prediction.epoch import check_card
    from harness.prediction.fewer_ranks import find_fewer_ranks
    from harness.prediction.partition_choice import compare_partitions
    from harness.spec.dataset import DatasetChoice
    from harness.spec.machine_card import load_machine_card

    root, look_up = request.home, request.make_graph_lookup()
    card = load_machine_card(root, request.machine)
    check_card(card)
    if request.memory is not None:
        card = card.model_copy(update={"memory_gb": request.memory})
    facts = look_up(validate(DatasetChoice, {"name": request.dataset}, "--dataset")).facts
    wanted = request.make_run_request()
    query = AdviceQuery(list_accepted_promises(request.accuracy), request.partition, "the options")
    predict = request.make_predictor(reporter.log)
    candidates = list_candidates(root, wanted, look_up, facts, query)
    # Twins may have to be built first, which must not be interrupted.
    processes = 0 if request.twins else _count_processes()
    work = inf if request.exhaustive or request.twins else float(request.within)
    advice = rank_options(candidates, card, predict, work, processes, reporter.step)
    admit = make_admission(root, wanted, look_up, facts, query)
    advice = find_fewer_ranks(advice, request.ranks, admit, predict, work, processes, reporter.step)
    advice = compare_partitions(advice, make_built_lookup(root), predict)
    tuned = (
        list(tune_options(root, request.default_runs, request.tune, advice, reporter.log))
        if request.tune
        else []
    )
    return AdviseAnswer(request, advice, card, facts, tuned)


def _count_processes() -> int:
    """Return the number of processes that predict in parallel: one per core, if there is enough memory."""
    from harness.base.host_memory import find_available_bytes

    return max(1, min(len(os.sched_getaffinity(0)), find_available_bytes() // PROCESS_BYTES))
