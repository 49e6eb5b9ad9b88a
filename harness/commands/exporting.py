"""harness data export: writes a built graph in the format of another library."""

from collections.abc import Iterator
from dataclasses import KW_ONLY
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic.dataclasses import dataclass

from harness.commands.answer import Answer
from harness.commands.data import GraphRequest
from harness.commands.output import Block, Headline, Raw, View
from harness.commands.request import CONFIG, OptionStyle
from harness.commands.verb import Reporter, verb
from harness.formatting import format_bytes


@dataclass(frozen=True, config=CONFIG)
class ExportRequest(GraphRequest):
    """The graph, the library that reads it, and the place to write to."""

    _: KW_ONLY
    to: Literal["pyg", "dgl", "ogb-arrays"]
    """The format: a file for PyTorch Geometric, a file for DGL, or a folder in OGB's text layout."""
    out: Annotated[Path, OptionStyle(metavar="PATH")]
    """The file, or for ogb-arrays the folder, to write. It must not exist."""


READERS = {
    "pyg": 'torch_geometric.data.Data.from_dict(torch.load("{path}", weights_only=True))',
    "dgl": 'dgl.load_graphs("{path}")[0][0]',
    "ogb-arrays": 'ogb.io.read_graph_raw.read_csv_graph_raw("{path}/raw")[0]',
}
"""The Python expression that reads each format."""


@plain_dataclass(frozen=True)
class ExportAnswer(Answer):
    """The file or folder that was written."""

    name: str
    to: str
    path: Path
    bytes: int

    def to_document(self) -> Any:
        return {"name": self.name, "format": self.to, "path": str(self.path), "bytes": self.bytes}

    def lay_out(self, view: View) -> Iterator[Block]:
        yield Headline(f"{self.name} is written to {self.path}: {self.to}, {format_bytes(self.bytes)}")
        yield "To read it in Python:"
        yield Raw(f"  {READERS[self.to].format(path=self.path)}")


@verb(ExportRequest)
def export(request: ExportRequest, reporter: Reporter) -> ExportAnswer:
    """Write a built graph in the format of another library.

    The files have the original numbers of the vertices, the edges with their weights, the features, the labels, the
    names of the classes and the split. `harness data import NAME --edges FILE` reads a pyg file back.

        harness data export tiny-sbm --to pyg --out graph.pt
        harness data export tiny-sbm --to ogb-arrays --out tiny-sbm-ogb
    """
    from harness.spec.dataset import DatasetChoice
    from harness.store.graph_export import export_graph

    choice = DatasetChoice(name=request.name)
    path = export_graph(request.home, choice, request.to, request.out, reporter.step)
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return ExportAnswer(request.name, request.to, path, sum(each.stat().st_size for each in files))
