"""harness data export: writes a built graph for another library."""

from collections.abc import Sequence
from dataclasses import KW_ONLY
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import Annotated

from pydantic.dataclasses import dataclass

from harness.base.formatting import format_bytes
from harness.cli.commands.answer import Answer
from harness.cli.commands.data import GraphRequest
from harness.cli.commands.output import Block, Headline, Raw
from harness.cli.commands.request import CONFIG, OptionStyle
from harness.cli.commands.verb import Reporter, verb


@dataclass(frozen=True, config=CONFIG)
class ExportRequest(GraphRequest):
    """The graph, and the file to write."""

    _: KW_ONLY
    out: Annotated[Path, OptionStyle(metavar="FILE")]
    """The file to write, for example graph.pt. It must not exist."""


@plain_dataclass(frozen=True)
class ExportAnswer(Answer):
    """The file that was written, and how to read it."""

    headline: Headline
    name: str
    path: Path
    reading: Sequence[Block]


@verb(ExportRequest)
def export(request: ExportRequest, reporter: Reporter) -> ExportAnswer:
    """Write a built graph as a file for PyTorch Geometric.

    The file has the original numbers of the vertices, the edges with their weights, the features, the labels, the
    names of the classes and the split. `harness data import NAME --edges FILE` reads it back.

        harness data export tiny-sbm --out graph.pt
    """
    from harness.graph.store.graph_export import export_graph
    from harness.spec.dataset import DatasetChoice

    choice = DatasetChoice(name=request.name)
    path = export_graph(request.home, choice, request.out, reporter.step)
    headline = Headline(f"{request.name} is written to {path}, {format_bytes(path.stat().st_size)}")
    read = f'  torch_geometric.data.Data.from_dict(torch.load("{path}", weights_only=True))'
    return ExportAnswer(headline, request.name, path, ("To read it in Python:", Raw(read)))
