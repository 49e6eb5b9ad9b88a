"""Node property datasets of the Open Graph Benchmark, in both layouts; read inside the archive, nothing extracted.

    text     TOP/raw/{edge,node-feat,node-label,num-node-list,num-edge-list}.csv.gz, without headers
    arrays   TOP/raw/data.npz (edge_index, node_feat, num_nodes_list), TOP/raw/node-label.npz
    both     TOP/split/SPLIT/{train,valid,test}.csv.gz

No cache and no pickle is made. Only the features of the layout of arrays become a file of their own, when they are read
first: rows in another order cannot be had from the middle of a compressed file.
"""

import csv
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import field_validator

from harness.errors import UserError
from harness.graph.model import NO_LABEL, SPLITS, Bytes, Floats, Labels
from harness.sources.archive import FileIn, opened
from harness.sources.arrays import ArrayIn, edges_of, head_of, mapped, whole_array
from harness.sources.refusal import refusing, split_of_ids
from harness.sources.remote import RemoteFile
from harness.sources.source import Rest, Source
from harness.sources.stream import AT_ONCE, Piece, Stream, counted
from harness.sources.text import START, pairs_of

EXPECTED = "the archive of a node property dataset of OGB, with raw/ and split/ in it"
ROWS = 1 << 17
"""Rows of features parsed at a time."""


class Ogb(Source):
    """A node property dataset of the benchmark. Its URL and its layout are taken from the package `ogb`."""

    kind: Literal["ogb"]
    name: str
    sha256: str | None = None
    """The checksum of the archive; none is published."""

    @field_validator("name")
    @classmethod
    def _of_the_benchmark(cls, name: str) -> str:
        if name not in (known := benchmarks()):
            raise ValueError(f"{name} is not among {', '.join(known)}")
        return name

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the dataset in the package."""
        return benchmarks()[self.name]

    def remotes(self) -> list[RemoteFile]:
        return [RemoteFile(url=self.properties["url"], file=f"raw/ogb/{self._top}.zip", sha256=self.sha256)]

    def stream(self, rest: Rest) -> Stream:
        path = rest.folder / self.remotes()[0].file
        with refusing(path, EXPECTED):
            layout = _Arrays if self.properties["binary"] == "True" else _Text
            inside = layout(path, f"{self._top}/raw")
            n, edges, counts = inside.n, inside.edges, counted(inside.pieces(AT_ONCE))
            if counts.edges != edges:
                raise UserError(f"{path} holds {counts.edges:,} edges, and says that it has {edges:,}.")
            counts.check(path, n)
            y, split = _labels(path, inside.labels(), n), self._split(path, n)
        return Stream(n, edges, inside.pieces, inside.features, y, split)

    @property
    def _top(self) -> str:
        """The name of the archive, and of the folder in it."""
        return self.properties["download_name"]

    def _split(self, path: Path, n: int) -> Bytes:
        members = {}
        for name in SPLITS:
            file = FileIn(path, f"{self._top}/split/{self.properties['split']}/{name}.csv.gz")
            with opened(file) as ids:
                members[name] = np.loadtxt(ids, dtype=np.int64, ndmin=1)
        return split_of_ids(path, members, n)


@cache
def benchmarks() -> dict[str, dict[str, str]]:
    """The package's own table, by dataset. The package is not imported: it would ask the network for its version."""
    package = find_spec("ogb")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'ogb'", name="ogb")
    with (Path(package.submodule_search_locations[0]) / "nodeproppred" / "master.csv").open(
        encoding="utf-8"
    ) as file:
        names, *rows = csv.reader(file)
    columns = {name: {row[0]: row[place] for row in rows} for place, name in enumerate(names) if place}
    return {name: column for name, column in columns.items() if column["is hetero"] == "False"}


class _Text:
    """The layout of text."""

    def __init__(self, path: Path, raw: str) -> None:
        self._path, self._raw = path, raw
        self.n, self.edges = self._number("num-node-list"), self._number("num-edge-list")

    def pieces(self, at_once: int) -> list[Piece]:
        text = self._file("edge")
        return pairs_of(text, at_once, START, lambda: UserError(f"{text}: a line is no pair of vertices."))

    def labels(self) -> Floats:
        with opened(self._file("node-label")) as file:
            return np.genfromtxt(file, dtype=np.float32, delimiter=",", ndmin=1)

    def features(self) -> Floats:
        import pandas as pd

        filled, X = 0, None
        with opened(self._file("node-feat")) as file:
            for rows in pd.read_csv(file, header=None, dtype=np.float32, chunksize=ROWS):
                X = np.empty((self.n, rows.shape[1]), np.float32) if X is None else X
                X[filled : filled + len(rows)] = rows.to_numpy()
                filled += len(rows)
        if X is None or filled != self.n:
            raise UserError(f"{self._path}: features of {filled:,} vertices, but there are {self.n:,}.")
        return X

    def _number(self, name: str) -> int:
        with opened(self._file(name)) as file:
            return int(file.readline())

    def _file(self, name: str) -> FileIn:
        return FileIn(self._path, f"{self._raw}/{name}.csv.gz")


class _Arrays:
    """The layout of arrays. Sources lie before targets, so two readers go through them side by side."""

    def __init__(self, path: Path, raw: str) -> None:
        self._path, self._raw = path, raw
        self._ends = self._array("data", "edge_index")
        two, self.edges = head_of(self._ends).shape
        if two != 2:
            raise UserError(f"{self._ends} has the shape {two, self.edges}, and not (2, edges).")
        self.n = int(whole_array(self._array("data", "num_nodes_list")).sum())

    def pieces(self, at_once: int) -> list[Piece]:
        return [partial(edges_of, (self._ends, self._ends), (0, self.edges), self.edges, at_once)]

    def labels(self) -> Floats:
        return whole_array(self._array("node-label", "node_label")).astype(np.float32).reshape(-1)

    def features(self) -> Floats:
        return mapped(self._array("data", "node_feat"), self._path.with_suffix(".node_feat.npy"))

    def _array(self, file: str, name: str) -> ArrayIn:
        return ArrayIn(self._path, (f"{self._raw}/{file}.npz", name))


def _labels(path: Path, labels: Floats, n: int) -> Labels:
    """A class for each vertex, or a 0 or 1 for each of many tasks; NaN becomes "no label"."""
    if len(labels) != n:
        raise UserError(f"{path}: labels have the shape {labels.shape}, but there are {n:,} vertices.")
    known = np.where(np.isnan(labels), NO_LABEL, labels)
    return known.astype(np.int64) if labels.ndim == 1 else known.astype(np.int8)
