"""harness data info: describes a graph by its card and, if it is built, by its store."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass as plain_dataclass
from typing import Any

from harness.commands.answer import Answer
from harness.commands.data import WEIGHTS, OrderRequest, describe_order
from harness.commands.layout import Block, Column, Command, Facts, Heading, Table, View
from harness.commands.verb import Reporter, verb
from harness.formatting import format_bytes, format_share, format_si
from harness.spec.dataset import DatasetChoice


@plain_dataclass(frozen=True)
class InfoAnswer(Answer):
    """What is known about a graph: `facts` has its card and, if it is built, the counts of its store."""

    choice: DatasetChoice
    facts: Mapping[str, Any]
    splits: Mapping[str, int]
    """The vertices of each split; empty before the graph is built."""

    @property
    def is_built(self) -> bool:
        return bool(self.facts["built"])

    def to_document(self) -> Any:
        return {**self.facts, **({"splits": dict(self.splits)} if self.splits else {})}

    def lay_out(self, view: View) -> Iterator[Block]:
        yield Heading(describe_size(self.choice.name, self.facts))
        yield Facts(list(list_facts(self.choice, self.facts)))
        if parts := self.facts.get("cut", {}).get("parts"):
            yield from _lay_out_parts(self.facts["cut"], parts)
        elif self.splits:
            total = sum(self.splits.values())
            rows = [{"split": name, "vertices": n, "share": n / total} for name, n in self.splits.items()]
            yield Table(SPLIT_COLUMNS, rows)
        if view.verbose:
            yield Facts(list(_list_details(self.facts)), "Details")
        if not self.is_built:
            yield "Not built. To build it:"
            yield from map(Command, list_build_commands(self.choice, self.facts))


SPLIT_COLUMNS = (
    Column("split", "split"),
    Column("vertices", "vertices", lambda n: f"{n:,}", is_number=True),
    Column("share", "share", format_share, is_number=True),
)
PART_COLUMNS = (
    Column("part", "part", is_number=True),
    Column("vertices", "vertices", lambda n: f"{n:,}", is_number=True),
    Column("nonzeros", "nonzeros", lambda n: f"{n:,}", is_number=True),
    Column("rows_needed", "rows needed", lambda n: f"{n:,}", is_number=True),
)


def describe_size(name: str, facts: Mapping[str, Any]) -> str:
    """Return the size of a graph in one line: counted if it is built, otherwise as its card expects it."""
    if manifest := facts.get("manifest"):
        counted = f"{manifest['n']:,} vertices, {manifest['counts']['nnz_adj']:,} nonzeros"
        return f"{name}: {counted}, built, {format_bytes(facts['bytes'])}"
    card = facts["card"]
    vertices = card["expected"].get("n") or card["source"].get("n")
    nonzeros = facts.get("nonzeros", {}).get("expected") or card["expected"].get("nnz_adj")
    sizes = [
        f"{vertices:,} vertices" if vertices else "",
        f"about {format_si(nonzeros)} nonzeros" if nonzeros else "",
        "not built",
    ]
    return f"{name}: {', '.join(filter(None, sizes))}"


def list_facts(choice: DatasetChoice, facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the facts of a graph as names and values. What is not known has no line."""
    card, manifest = facts["card"], facts.get("manifest", {})
    if description := card.get("description"):
        yield "graph", description
    yield "edges", f"{'directed' if card['directed'] else 'undirected'}, {WEIGHTS[card.get('weights')]}"
    if "nonzeros" in facts and "built" in facts["nonzeros"]:
        yield (
            "nonzeros",
            f"{facts['nonzeros']['deviation']} off the {facts['nonzeros']['expected']:,} of its card",
        )
    width = manifest.get("features") or card["features"].get("width") or card["expected"].get("features")
    yield "features", f"{f'{width:,}, ' if width else ''}{_describe_origin(card['features'])}"
    yield "classes", f"{card['classes']:,}, {card['task']}, {_describe_origin(card['labels'])}"
    yield "split", _describe_origin(card["split"])
    if degrees := facts.get("degrees"):
        yield (
            "entries per row",
            f"{degrees['least']:,} to {degrees['most']:,}, median {degrees['median']:,.0f}, mean "
            f"{degrees['mean']:,.1f}; 1 % of the rows have {format_share(degrees['share_of_top_hundredth'])}",
        )
    yield "source", _describe_source(card["source"])
    if licence := card.get("licence"):
        yield "licence", licence
    if facts["built"]:
        yield "order", describe_order(choice)
        yield "store", facts["folder"]


def _describe_origin(recipe: Mapping[str, Any]) -> str:
    """Return how features, labels or a split are made: read from a file, or drawn with their parameters."""
    kind, others = (
        recipe["kind"],
        {key: value for key, value in recipe.items() if key not in ("kind", "width")},
    )
    if kind == "file":
        return f"from {others['path']}" if "path" in others else "from the source"
    parameters = ", ".join(f"{key} {value}" for key, value in others.items() if value not in (0, False))
    return f"{kind}{f' ({parameters})' if parameters else ''}"


def _describe_source(source: Mapping[str, Any]) -> str:
    """Return the source of a graph: its kind, and where it is published or how it is generated."""
    shown = [
        f"{key} {value}"
        for key, value in source.items()
        if key != "kind" and isinstance(value, str | int | float)
    ]
    return ", ".join([source["kind"], *shown])


def _lay_out_parts(cut: Mapping[str, Any], parts: list[Mapping[str, int]]) -> Iterator[Block]:
    rows_needed, nonzeros = cut["rows_needed"], cut["nonzeros"]
    pairs = [
        ("vertices of a part", f"{cut['vertices']['fewest']:,} to {cut['vertices']['most']:,}"),
        ("most nonzeros", f"{nonzeros['most']:,}, {nonzeros['most_over_mean']:.3f} times the mean"),
        ("rows needed", f"{rows_needed['total']:,} in all, at most {rows_needed['most']:,}"),
    ]
    if copies := cut.get("vertex_cut"):
        pairs.append(("copies of a vertex", f"{copies['replication_factor']:.2f} on average"))
    yield Facts(pairs, "Partition")
    yield Table(PART_COLUMNS, [{"part": number, **part} for number, part in enumerate(parts)], most_rows=20)


def _list_details(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the values of the card and of the manifest, one to a line, by their dotted keys."""
    for section in ("card", "manifest"):
        yield from _flatten(facts.get(section, {}), section)


def _flatten(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flatten(inner, f"{key}.{name}")
    else:
        yield key, str(value)


def list_build_commands(choice: DatasetChoice, facts: Mapping[str, Any]) -> list[str]:
    """Return the commands that fetch and build a graph. Only graphs with published files are fetched."""
    generated = facts["card"]["source"].get("n") is not None or (
        "nonzeros" in facts and "draws" in facts["nonzeros"]
    )
    fetch = [] if generated else [shlex.join(["harness", "data", "fetch", choice.name])]
    return [*fetch, choice.build_command]


@verb(OrderRequest)
def info(request: OrderRequest, _: Reporter) -> InfoAnswer:
    """Print the facts of a graph: its card, its store if it is built, and the parts of a partition.

    The graph need not be built. `harness advise --dataset NAME --ranks P --all` compares strategies on it.

        harness data info reddit
        harness data info tiny-sbm --partition metis --parts 4
    """
    from harness.store.info import describe_dataset

    choice = request.choose_order("info")
    facts = describe_dataset(request.home, choice)
    return InfoAnswer(choice, facts, _count_splits(facts["folder"]) if facts["built"] else {})


def _count_splits(folder: str) -> dict[str, int]:
    """Return the vertices of each split that has any."""
    from pathlib import Path

    from harness.store.reader import Store

    store = Store(Path(folder))
    codes = store.split(range(store.n)).bincount(minlength=4).tolist()
    names = ("none", "train", "valid", "test")
    return {name: count for name, count in zip(names, codes, strict=False) if count}
