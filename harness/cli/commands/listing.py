"""harness list: lists the names that a spec can use, and the grids of a strategy."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, field
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic.dataclasses import dataclass

from harness.base.errors import UserError, missing_package_error
from harness.base.formatting import format_count
from harness.cli.commands.answer import Answer
from harness.cli.commands.output import Block, FactList, Headline, Table, TableColumn, View
from harness.cli.commands.request import CONFIG, OptionStyle, Ranks, Request, StrategyName
from harness.cli.commands.verb import Reporter, verb

if TYPE_CHECKING:
    from harness.experiment.trained_models import StrategyDescription

Kind = Literal["strategies", "models", "grids", "datasets", "machines", "experiments", "figures", "settings"]


@dataclass(frozen=True, config=CONFIG)
class ListRequest(Request):
    """What to list."""

    kind: Annotated[Kind, OptionStyle(metavar="WHAT", is_positional=True)]
    """What to list."""
    _: KW_ONLY
    strategy: StrategyName | None = None
    """With strategies or grids: only this one."""
    ranks: Ranks = 1
    """With grids: the number of ranks."""


@plain_dataclass(frozen=True)
class ListAnswer(Answer):
    """A list of things of one kind."""

    title: str
    columns: Sequence[TableColumn]
    rows: Sequence[Mapping[str, Any]]
    documents: Sequence[Mapping[str, Any]]
    """The same as JSON data."""
    notes: Sequence[str] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """The reason for each thing that could not be read, by name."""
    describe: Callable[[], Iterator[Block]] | None = None
    """Yields the description of each thing instead of the table, with -v or of a single thing."""

    def to_document(self) -> Any:
        return list(self.documents)

    def to_frame(self) -> Any:
        import pandas as pd

        return pd.DataFrame([dict(row) for row in self.rows])

    def lay_out(self, view: View) -> Iterator[Block]:
        is_single = len(self.rows) == 1
        if not (is_single and self.describe):
            yield Headline(self.title)
        if self.describe and (view.verbose or is_single):
            yield from self.describe()
        else:
            yield Table(self.columns, self.rows)
            yield from self.notes
        if self.unreadable and view.why:
            columns = [TableColumn("name", "name"), TableColumn("reason", "reason", may_wrap=True)]
            rows = [{"name": name, "reason": reason} for name, reason in self.unreadable.items()]
            yield Table(columns, rows, "Reasons")
        elif self.unreadable:
            yield f"Not read: {', '.join(self.unreadable)} (--why)"


# Strategies.


def shorten_paper(paper: str) -> str:
    """Return a paper and its year without the section, or the words before a colon if there is no paper."""
    return paper.partition(":")[0].partition("),")[0] + (")" if ")," in paper else "")


STRATEGY_COLUMNS = (
    TableColumn("name", "strategy"),
    TableColumn("paper", "paper", format=shorten_paper, may_wrap=True),
    TableColumn("trains_on", "trains on", format=lambda steps: steps.removeprefix("the ")),
    TableColumn("promise", "result"),
    TableColumn("models", "models", format=", ".join),
)


def _list_strategies(request: ListRequest) -> ListAnswer:
    from harness.experiment.trained_models import describe_strategy
    from harness.registry import registered_strategies

    if request.strategy:
        found, unreadable = [describe_strategy(request.strategy)], dict[str, str]()
    else:
        names = sorted(point.name for point in registered_strategies())
        found, unreadable = _describe_all(names, describe_strategy)
    rows = [each._asdict() for each in found]
    documents = [{**row, "parameters": [key._asdict() for key in row["parameters"]]} for row in rows]
    promises = Counter(each.promise for each in found)
    counts = ", ".join(f"{promises[promise]} {promise}" for promise in sorted(promises, key=RESULTS.index))
    notes = [
        "exact: the results of serial training; estimator: right on average; approximate: neither.",
        "--strategy NAME describes a strategy, its axes and its parameters, and -v all of them.",
    ]
    return ListAnswer(
        f"{len(found)} strategies: {counts}",
        STRATEGY_COLUMNS,
        rows,
        documents + [{"name": name, "error": reason} for name, reason in unreadable.items()],
        notes,
        unreadable,
        lambda: (block for each in found for block in _describe_strategy(each)),
    )


T = TypeVar("T")


def _describe_all(names: Iterable[str], describe: Callable[[str], T]) -> tuple[list[T], dict[str, str]]:
    """Describe things by name. Also return the reason for each thing that cannot be described."""
    found, unreadable = list[T](), dict[str, str]()
    for name in names:
        try:
            found.append(describe(name))
        except UserError as error:
            unreadable[name] = str(error)
        except ModuleNotFoundError as error:  # an optional package knows the sizes of a graph
            unreadable[name] = str(missing_package_error(error) or error)
    return found, unreadable


RESULTS = ["exact", "estimator", "approximate"]


def _describe_strategy(strategy: "StrategyDescription") -> Iterator[Block]:
    over = f", partitioned over {strategy.partitioned_over}" if strategy.partitioned_over else ""
    yield Headline(f"{strategy.name}: {strategy.about}")
    yield FactList(
        [
            ("paper", strategy.paper or "none"),
            ("result", strategy.promise),
            ("trains on", strategy.trains_on),
            ("models", ", ".join(strategy.models)),
            ("axes", f"{', '.join(strategy.axes)}{over}"),
            ("order", strategy.order),
        ]
    )
    yield Table(SETTING_COLUMNS, [key._asdict() for key in strategy.parameters])


def _list_models(root: Path) -> ListAnswer:
    from harness.experiment.trained_models import list_trained_models

    models = list_trained_models(root)
    rows = [model.as_row() for model in models]
    signs = {True: "yes", False: "-"}
    columns = [
        TableColumn(name, name, format=lambda cell: signs.get(cell, str(cell)), may_drop=name != "strategy")
        for name in (rows[0] if rows else ())
    ]
    return ListAnswer(
        f"The models that {format_count(len(rows), 'strategy', 'strategies')} train",
        columns,
        rows,
        [{**model.as_row(), "missing": model.missing} for model in models],
        unreadable={model.strategy: model.missing for model in models if model.missing},
    )


def _list_grids(request: ListRequest) -> ListAnswer:
    from harness.registry import load_strategy

    if request.strategy is None:
        raise UserError("list grids needs --strategy NAME, and --ranks P for more than one rank.")
    grids = load_strategy(request.strategy).grids(request.ranks)
    if not grids:
        raise UserError(f"{request.strategy} has no grid of {request.ranks} ranks.")
    documents = [{axis.value: size for axis, size in grid.items()} for grid in grids]
    axes = list(dict.fromkeys(axis for grid in documents for axis in grid))
    rows = [{"grid": ",".join(f"{axis}={size}" for axis, size in grid.items()), **grid} for grid in documents]
    columns = [TableColumn("grid", "--grid"), *(TableColumn(axis, axis, "whole") for axis in axes)]
    ranks = format_count(request.ranks, "rank")
    title = f"{request.strategy} has {format_count(len(grids), 'grid')} of {ranks}"
    return ListAnswer(title, columns, rows, documents)


# Cards and experiments.

Describe = Callable[[str], dict[str, Any]]


def _list_cards(
    names: Sequence[str], noun: str, columns: Sequence[TableColumn], describe: Describe
) -> ListAnswer:
    """List cards by name. A card that cannot be read does not hide the others."""
    rows, unreadable = _describe_all(names, lambda name: {"name": name, **describe(name)})
    documents = rows + [{"name": name, "about": reason} for name, reason in unreadable.items()]
    count = format_count(len(names), noun)
    return ListAnswer(count, (TableColumn("name", noun), *columns), rows, documents, unreadable=unreadable)


def take_sentence(text: str) -> str:
    """Return the first sentence of a description."""
    return text.partition(". ")[0]


ABOUT = TableColumn("about", "description", format=take_sentence, may_wrap=True, may_drop=True)
DATASET_COLUMNS = (
    TableColumn("vertices", "vertices", "count"),
    TableColumn("edges", "edges", "count"),
    TableColumn("features", "features", "whole"),
    TableColumn("classes", "classes", "whole"),
    TableColumn("built", "built"),
    ABOUT,
)


def _list_datasets(root: Path) -> ListAnswer:
    from harness.graph.cards.catalog import list_cards

    return _list_cards(list_cards(root), "graph", DATASET_COLUMNS, lambda name: _describe_dataset(root, name))


def _describe_dataset(root: Path, name: str) -> dict[str, Any]:
    from harness.graph.cards.catalog import load_card
    from harness.graph.store.location import describe_built

    card = load_card(root, name)
    vertices, edges = card.count_edges()
    return {
        "about": " ".join(card.description.split()),
        "vertices": vertices,
        "edges": edges,
        "features": getattr(card.features, "width", None) or card.expected.features,
        "classes": card.classes,
        "built": describe_built(root, card),
    }


MACHINE_COLUMNS = (
    TableColumn("device", "device"),
    TableColumn("ranks_per_node", "ranks per node", "whole"),
    TableColumn("predicts", "predictions", format={True: "yes", False: "no"}.__getitem__),
    ABOUT,
)


def _list_machines(root: Path) -> ListAnswer:
    from harness.spec.machine_card import list_machines

    return _list_cards(
        list_machines(root), "machine", MACHINE_COLUMNS, lambda name: _describe_machine(root, name)
    )


def _describe_machine(root: Path, name: str) -> dict[str, Any]:
    from harness.spec.machine_card import load_machine_card

    card = load_machine_card(root, name)
    return {
        "about": " ".join(card.description.split()),
        "device": "CPU" if card.device == "cpu" else "GPU",
        "ranks_per_node": card.links.devices_per_node if card.links else None,
        "predicts": bool(card.rates and card.links),
    }


EXPERIMENT_COLUMNS = (
    TableColumn("paper", "paper"),
    TableColumn("laptop", "runs", "whole"),
    TableColumn("emulated", "emulated", "whole"),
    TableColumn("published", "published", "whole"),
    ABOUT,
)


def _list_experiments(root: Path) -> ListAnswer:
    from harness.experiment.paper_figures import EXPERIMENTS, has_paper_figures, list_paper_figures

    papers = (
        {figure.id: figure.paper for figure in list_paper_figures(root)} if has_paper_figures(root) else {}
    )
    names = sorted(path.stem for path in (root / EXPERIMENTS).glob("*.yaml"))
    return _list_cards(
        names,
        "experiment",
        EXPERIMENT_COLUMNS,
        lambda name: _describe_experiment(root / EXPERIMENTS / f"{name}.yaml", papers),
    )


def _describe_experiment(path: Path, papers: Mapping[str, str]) -> dict[str, Any]:
    from harness.experiment.expand import count_runs
    from harness.experiment.experiment_file import load_experiment

    experiment = load_experiment(path)
    scales = {
        "laptop": experiment,
        "emulated": experiment.emulated,
        "published": experiment.published,
    }
    shown = dict.fromkeys(papers.get(figure, figure) for figure in experiment.reproduces)
    return {
        "about": " ".join(experiment.description.split()),
        "paper": ", ".join(shown) or None,
        **{scale: runs and count_runs(runs, experiment.name) for scale, runs in scales.items()},
    }


FIGURE_COLUMNS = (
    TableColumn("id", "figure"),
    TableColumn("number", "number"),
    TableColumn("drawing", "our figure", may_drop=True),
    TableColumn("reproduction", "experiment", may_wrap=True),
    TableColumn("title", "title", may_wrap=True, may_drop=True),
)


def _list_figures(root: Path) -> ListAnswer:
    from harness.experiment.paper_figures import list_paper_figures

    figures = list_paper_figures(root)
    rows = [{**figure.model_dump(), "reproduction": figure.reproduction} for figure in figures]
    reproduced = sum(bool(figure.experiments) for figure in figures)
    return ListAnswer(
        f"{len(figures)} figures and tables of papers, {reproduced} with an experiment",
        FIGURE_COLUMNS,
        rows,
        [figure.model_dump() for figure in figures],
    )


SETTING_COLUMNS = (
    TableColumn("key", "key"),
    TableColumn("accepts", "accepted", may_wrap=True),
    TableColumn("default", "default"),
    TableColumn("meaning", "meaning", may_wrap=True),
)


def _list_settings() -> ListAnswer:
    from harness.spec.spec import list_spec_settings

    rows = [setting._asdict() for setting in list_spec_settings()]
    return ListAnswer(f"{len(rows)} keys of --set KEY=VALUE", SETTING_COLUMNS, rows, rows)


@verb(ListRequest)
def list_names(request: ListRequest, _: Reporter) -> ListAnswer:
    """List the strategies, graphs, machines, experiments, figures of papers, or keys of --set.

    models: the models and parts of a layer that each strategy trains. grids: the grids of a strategy for a number of
    ranks, as --grid accepts them. figures: the figures of papers, each with the experiment that reproduces it, or the
    reason why none does.
    """
    if request.strategy and request.kind not in OF_ONE_STRATEGY:
        raise UserError(f"--strategy is for {' and '.join(OF_ONE_STRATEGY)}, not for {request.kind}.")
    return LISTS[request.kind](request)


OF_ONE_STRATEGY: Sequence[Kind] = ("strategies", "grids")
LISTS: Mapping[Kind, Callable[[ListRequest], ListAnswer]] = {
    "strategies": _list_strategies,
    "models": lambda request: _list_models(request.home),
    "datasets": lambda request: _list_datasets(request.home),
    "machines": lambda request: _list_machines(request.home),
    "experiments": lambda request: _list_experiments(request.home),
    "figures": lambda request: _list_figures(request.home),
    "settings": lambda _: _list_settings(),
    "grids": _list_grids,
}
