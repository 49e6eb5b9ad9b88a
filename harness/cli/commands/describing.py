"""harness data info: describes a graph by its card and, if it is built, by its store."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass as plain_dataclass
from typing import TYPE_CHECKING, Any

from harness.base.formatting import format_si
from harness.cli.commands.answer import Answer
from harness.cli.commands.data import OrderRequest
from harness.cli.commands.output import (
    MOST_ROWS,
    Block,
    Command,
    FactList,
    Headline,
    Table,
    TableColumn,
    View,
)
from harness.cli.commands.verb import Reporter, verb

if TYPE_CHECKING:
    from harness.graph.store.info import DatasetDescription


@plain_dataclass(frozen=True)
class InfoAnswer(Answer):
    """What is known about a graph: counted if it is built in any order, and otherwise expected by its card."""

    described: "DatasetDescription"
    details: Mapping[str, Any]
    """The card and, if the store is built, its manifest."""

    def to_document(self) -> Any:
        return self.described.to_document()

    def lay_out(self, view: View) -> Iterator[Block]:
        yield Headline(describe_size(self.described))
        yield FactList(self.described.list_facts())
        cut, split = self.described.cut, self.described.split
        if cut:
            yield from _lay_out_parts(cut)
        elif split:
            total = sum(split.values())
            rows = [{"split": name, "vertices": n, "share": n / total} for name, n in split.items()]
            yield Table(SPLIT_COLUMNS, rows)
        if view.verbose:
            yield FactList(list(_flatten(self.details, "")), "Details")
        if self.described.build:
            yield "Not built. To build it:"
            yield from map(Command, self.described.build)


SPLIT_COLUMNS = (
    TableColumn("split", "split"),
    TableColumn("vertices", "vertices", "whole"),
    TableColumn("share", "share", "%"),
)
PART_COLUMNS = (
    TableColumn("part", "part", "whole"),
    TableColumn("vertices", "vertices", "whole"),
    TableColumn("nonzeros", "nonzeros", "whole"),
    TableColumn("rows_needed", "rows needed", "whole"),
)


def describe_size(described: "DatasetDescription") -> str:
    """Return the size of a graph in one line: counted if it is built, otherwise as its card expects it."""
    about = "" if described.counted else "about "
    sizes = [
        f"{described.vertices:,} vertices" if described.vertices else "",
        f"{about}{format_si(described.nonzeros)} nonzeros" if described.nonzeros else "",
        "not built" if described.build else "",
    ]
    return f"{described.name}: {', '.join(filter(None, sizes))}"


def _lay_out_parts(cut: Mapping[str, Any]) -> Iterator[Block]:
    rows_needed, nonzeros = cut["rows_needed"], cut["nonzeros"]
    pairs = [
        ("vertices of a part", f"{cut['vertices']['fewest']:,} to {cut['vertices']['most']:,}"),
        ("most nonzeros", f"{nonzeros['most']:,}, {nonzeros['most_over_mean']:.3f} times the mean"),
        ("rows needed", f"{rows_needed['total']:,} in all, at most {rows_needed['most']:,}"),
    ]
    if copies := cut.get("vertex_cut"):
        pairs.append(("copies of a vertex", f"{copies['replication_factor']:.2f} on average"))
    yield FactList(pairs, "Partition")
    yield Table(
        PART_COLUMNS,
        [{"part": number, **part} for number, part in enumerate(cut["parts"])],
        most_rows=MOST_ROWS,
    )


def _flatten(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield the values of nested mappings, one to a line, by their dotted keys."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flatten(inner, f"{key}.{name}" if key else name)
    else:
        yield key, str(value)


@verb(OrderRequest)
def info(request: OrderRequest, _: Reporter) -> InfoAnswer:
    """Print the facts of a graph: its card, its store if it is built, and the parts of a partition.

    The graph need not be built. `harness advise --dataset NAME --ranks P --all` compares strategies on it.

        harness data info reddit
        harness data info tiny-sbm --partition metis --parts 4
    """
    from harness.graph.store.info import describe_dataset, list_details

    choice = request.choose_order("info")
    return InfoAnswer(describe_dataset(request.home, choice), list_details(request.home, choice))
