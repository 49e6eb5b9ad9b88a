"""Writes a built graph in the formats of other libraries. Importing what was written gives the same graph.

    pyg          a file for torch_geometric.data.Data.from_dict(torch.load(file, weights_only=True))
    dgl          a file of dgl.save_graphs with one graph
    ogb-arrays   a folder in the text layout of OGB's node property datasets: raw/*.csv.gz and split/harness/*.csv.gz

Vertices have their original numbers, whatever order the store has. An undirected edge is written in both directions.
Loops are those of the matrix A and no part of the graph: a loop is written only if its weight is not that of the loop
which an import adds. Weights are those of the file, before normalisation. Generated features and labels are included.
Names of classes are `class_names` of a `Data`, the file mapping/labelidx2class.csv.gz, or a JSON file next to DGL's.

`pyg` and `dgl` need the whole graph in memory: 32 bytes for each edge in each direction (48 with weights), and 8 for
each feature. `ogb-arrays` is written in pieces; it needs 24 bytes for each vertex, and its labels.
"""

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.errors import UserError
from harness.files import RESULTS, atomic_folder, explain_os_errors, sync_file, sync_folder, temporary_path
from harness.graph.blocks import gather_features, read_row_stripes
from harness.graph.model import NO_LABEL, SPLITS
from harness.graph.normalise import ADDED_LOOP_WEIGHT
from harness.kernels.csr import row_indices
from harness.progress import OnStep, ignore_step
from harness.spec.dataset import DatasetChoice
from harness.store.catalog import load_card
from harness.store.class_names import list_class_names
from harness.store.datasets import open_dataset
from harness.store.memory_store import MemoryStore
from harness.store.reader import Store

Built = Store | MemoryStore
Format = Literal["pyg", "dgl", "ogb-arrays"]
ROWS, FEATURES = 1 << 16, 1 << 22
"""The rows of text written at a time, and the features read at a time."""
SPLIT = "harness"
"""The name of the split in OGB's layout."""
CLASS_MAPPING, CLASS_COLUMNS = "mapping/labelidx2class.csv.gz", ("label idx", "class")
"""The file of the names of the classes in OGB's layout, and its columns, as its datasets have them."""


class EdgePiece(NamedTuple):
    """Some edges, by the original numbers of their ends."""

    source: Tensor
    target: Tensor
    weight: Tensor | None


def export_graph(
    root: Path, choice: DatasetChoice, to: Format, out: Path, on_step: OnStep = ignore_step
) -> Path:
    """Write a built graph in another library's format, to the new file or folder `out`, and return its path."""
    for path in (out, *([get_class_names_sidecar(out)] if to == "dgl" else [])):
        if path.exists():
            raise UserError(f"{path} exists. Choose another path, or remove it.")
    if not out.parent.is_dir():
        raise UserError(f"There is no folder {out.parent}. Make it first, or choose another path.")
    write = {"pyg": _write_pyg, "dgl": _write_dgl, "ogb-arrays": _write_ogb}[to]
    if to == "dgl":
        _import_dgl()  # before anything is read
    blocks = open_dataset(root, choice)
    assert isinstance(blocks, Built)
    write(blocks, out, on_step, list_class_names(root, load_card(root, choice.name)) or [])
    return out


def get_class_names_sidecar(out: Path) -> Path:
    """Return the file next to a DGL file that lists the names of the classes, in JSON."""
    return out.with_name(f"{out.name}.classes.json")


def read_edges(blocks: Built, on_step: OnStep) -> Iterator[EdgePiece]:
    """Yield the edges of a graph in pieces."""
    loop = ADDED_LOOP_WEIGHT[blocks.weights] if blocks.weights else 1.0
    order = blocks.orders
    for rows, A in read_row_stripes(blocks, range(blocks.n)):
        on_step(rows.start, blocks.n, "reading edges")
        target, source = order.p[rows.start + row_indices(A).long()], order.q[A.col.long()]
        weight = blocks.edge_weights(rows) if isinstance(blocks, Store) and blocks.weights else None
        kept = (target != source) | (weight != loop) if weight is not None else target != source
        yield EdgePiece(source[kept], target[kept], None if weight is None else weight[kept])


def read_features(blocks: Built) -> Iterator[tuple[range, Tensor]]:
    """Yield the features of the vertices in their original order, some rows at a time."""
    places = torch.empty(blocks.n, dtype=torch.int64)
    places[blocks.orders.q] = torch.arange(blocks.n)
    step = max(FEATURES // max(blocks.features, 1), 1)
    for start in range(0, blocks.n, step):
        rows = range(start, min(start + step, blocks.n))
        yield rows, gather_features(blocks, places[rows.start : rows.stop], range(blocks.features))


def read_vertex_data(blocks: Built) -> tuple[Tensor, Tensor]:
    """Return the labels and the split of all vertices in their original order."""
    y, split = blocks.labels(range(blocks.n)), blocks.split(range(blocks.n))
    labels, parts = torch.empty_like(y), torch.empty_like(split)
    labels[blocks.orders.p], parts[blocks.orders.p] = y, split
    return labels, parts


class _WholeGraph(NamedTuple):
    """A graph in memory."""

    edges: EdgePiece
    X: Tensor
    y: Tensor
    masks: dict[str, Tensor]


def _read_whole(blocks: Built, on_step: OnStep) -> _WholeGraph:
    sources, targets, weights = zip(*read_edges(blocks, on_step), strict=True)
    X = torch.empty(blocks.n, blocks.features)
    for rows, features in read_features(blocks):
        X[rows.start : rows.stop] = features
    y, split = read_vertex_data(blocks)
    masks = {f"{'val' if name == 'valid' else name}_mask": split == value for name, value in SPLITS.items()}
    weight = torch.cat(weights) if blocks.weights else None
    return _WholeGraph(EdgePiece(torch.cat(sources), torch.cat(targets), weight), X, y, masks)


def _write_pyg(blocks: Built, out: Path, on_step: OnStep, class_names: list[str]) -> None:
    """Write the dictionary of a `Data`: torch loads it without executing code, unlike the object itself."""
    graph = _read_whole(blocks, on_step)
    y = graph.y if graph.y.dim() == 1 else graph.y.float()
    ends = torch.stack([graph.edges.source, graph.edges.target])
    data = {"x": graph.X, "y": y, "edge_index": ends, "num_nodes": blocks.n, **graph.masks}
    if graph.edges.weight is not None:
        data["edge_attr"] = graph.edges.weight
    if class_names:
        data["class_names"] = class_names
    with _replace_file(out) as part:
        torch.save(data, part)


def _import_dgl() -> Any:
    try:
        return import_module("dgl")
    except Exception as error:  # it fails in many ways with a torch that it was not built for
        raise UserError(
            f"The format dgl needs the package dgl, which cannot be imported: {type(error).__name__}: {error}. Install "
            "a version that supports this torch: pip install dgl==1.1.3"
        ) from error


def _write_dgl(blocks: Built, out: Path, on_step: OnStep, class_names: list[str]) -> None:
    dgl, graph = _import_dgl(), _read_whole(blocks, on_step)
    g = dgl.graph((graph.edges.source, graph.edges.target), num_nodes=blocks.n)
    g.ndata["feat"], g.ndata["label"] = graph.X, graph.y
    g.ndata.update(graph.masks)
    if graph.edges.weight is not None:
        g.edata["weight"] = graph.edges.weight
    if class_names:
        with _replace_file(get_class_names_sidecar(out)) as part:
            part.write_text(json.dumps(class_names, ensure_ascii=False, indent=1), encoding="utf-8")
    with _replace_file(out) as part:
        dgl.save_graphs(str(part), [g])


def _write_ogb(blocks: Built, out: Path, on_step: OnStep, class_names: list[str]) -> None:
    y, split = read_vertex_data(blocks)
    last = "raw/num-edge-list.csv.gz"
    with atomic_folder(out, last, RESULTS) as folder:
        (folder / "raw").mkdir()
        (folder / "split" / SPLIT).mkdir(parents=True)
        edges = _write_ogb_edges(blocks, folder / "raw", on_step)
        _write_rows(folder / "raw/node-feat.csv.gz", _cut_features(blocks), _format_floats)
        labels = y[:, None] if y.dim() == 1 else y
        _write_rows(folder / "raw/node-label.csv.gz", labels.split(ROWS), _format_labels)
        for name, value in SPLITS.items():
            vertices = (split == value).nonzero()
            _write_rows(folder / f"split/{SPLIT}/{name}.csv.gz", vertices.split(ROWS), _format_integers)
        if class_names:
            (folder / "mapping").mkdir()
            with (
                _open_text(folder / CLASS_MAPPING) as file,
                io.TextIOWrapper(file, "utf-8", newline="") as text,
            ):
                csv.writer(text, lineterminator="\n").writerows([CLASS_COLUMNS, *enumerate(class_names)])
        for name, count in (("num-node-list", blocks.n), ("num-edge-list", edges)):
            _write_rows(folder / f"raw/{name}.csv.gz", [torch.tensor([[count]])], _format_integers)


def _cut_features(blocks: Built) -> Iterator[Tensor]:
    return (rows for _, X in read_features(blocks) for rows in X.split(ROWS))


def _write_ogb_edges(blocks: Built, raw: Path, on_step: OnStep) -> int:
    """Write the edges and their weights; return the number of edges."""
    edges, with_weights = 0, blocks.weights is not None
    with (
        _open_text(raw / "edge.csv.gz") as ends_file,
        _open_text(raw / "edge-feat.csv.gz") if with_weights else nullcontext() as weights_file,
    ):
        for source, target, weight in read_edges(blocks, on_step):
            edges += len(source)
            for rows in torch.stack([source, target], dim=1).split(ROWS):
                ends_file.write(_format_integers(rows))
            if weights_file is not None and weight is not None:
                for rows in weight[:, None].split(ROWS):
                    weights_file.write(_format_doubles(rows))
    return edges


def _write_rows(path: Path, pieces: Iterable[Tensor], format_rows: Callable[[Tensor], bytes]) -> None:
    with _open_text(path) as file:
        for rows in pieces:
            file.write(format_rows(rows))


@contextmanager
def _open_text(path: Path) -> Iterator[gzip.GzipFile]:
    """Open a file for compressed text. It holds no name and time, so equal graphs give equal bytes."""
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", compresslevel=5, fileobj=raw, mtime=0) as file,
    ):
        yield file


def _format_rows(rows: Tensor, cell: str) -> bytes:
    line = ",".join([cell] * rows.shape[1]) + "\n"
    return (line * len(rows) % tuple(rows.reshape(-1).tolist())).encode()


def _format_integers(rows: Tensor) -> bytes:
    return _format_rows(rows, "%d")


def _format_floats(rows: Tensor) -> bytes:
    """Format float32 with nine digits, which identify it, and a decimal point, by which readers tell its type."""
    return _format_rows(rows, "%#.9g")


def _format_doubles(rows: Tensor) -> bytes:
    return _format_rows(rows, "%#.17g")


def _format_labels(rows: Tensor) -> bytes:
    """Format labels; those of a vertex without a label are `nan`, as in OGB's datasets."""
    if (rows != NO_LABEL).all():
        return _format_integers(rows)
    lines = np.where(rows.numpy() == NO_LABEL, "nan", rows.numpy().astype(str))
    return ("\n".join(map(",".join, lines.tolist())) + "\n").encode()


@contextmanager
def _replace_file(out: Path) -> Iterator[Path]:
    """Yield a temporary path, and rename it to `out` at the end. On an error, remove it."""
    part = temporary_path(out)
    try:
        with explain_os_errors(out):
            yield part
            sync_file(part)
            part.rename(out)
            sync_folder(out.parent)
    finally:
        part.unlink(missing_ok=True)
