"""Node property datasets of the Open Graph Benchmark, in both layouts, read from inside the archive.

    text     TOP/raw/{edge,node-feat,node-label,num-node-list,num-edge-list}.csv.gz, without headers
    arrays   TOP/raw/data.npz (edge_index, node_feat, num_nodes_list), TOP/raw/node-label.npz
    both     TOP/split/SPLIT/{train,valid,test}.csv.gz

No pickles are read. Only the features of the array layout are extracted to a file when they are first read, because
the rows of a compressed member cannot be read in another order.
"""

import csv
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import field_validator

from harness.base.errors import UserError
from harness.graph.model import NO_LABEL, SPLITS, Bytes, Floats, Labels
from harness.graph.sources.archive import FileRef, open_file
from harness.graph.sources.npz_arrays import ArrayRef, map_extracted, read_array, read_edges, read_header
from harness.graph.sources.read_errors import convert_read_errors
from harness.graph.sources.remote import RemoteFile
from harness.graph.sources.source import ReadOptions, Source
from harness.graph.sources.splits import make_split_from_ids
from harness.graph.sources.stream import CHUNK_EDGES, EdgeStream, Piece, count_edges
from harness.graph.sources.text import START, cut_into_pairs

EXPECTED = "the archive of an OGB node property dataset, with raw/ and split/"
ROWS = 1 << 17
"""The number of feature rows parsed at a time."""


class Ogb(Source):
    """A node property dataset. Its URL and its layout come from the package `ogb`."""

    kind: Literal["ogb"]
    name: str
    sha256: str | None = None
    """The checksum of the archive, if known; none is published."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name not in (known := read_ogb_table()):
            raise ValueError(f"{name} is not one of {', '.join(known)}")
        return name

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the dataset according to the package."""
        return read_ogb_table()[self.name]

    def list_remote_files(self) -> list[RemoteFile]:
        return [
            RemoteFile(url=self.properties["url"], file=f"raw/ogb/{self._top_folder}.zip", sha256=self.sha256)
        ]

    def open_stream(self, options: ReadOptions) -> EdgeStream:
        path = options.folder / self.list_remote_files()[0].file
        with convert_read_errors(path, EXPECTED):
            layout = _ArrayLayout if self.properties["binary"] == "True" else _TextLayout
            files = layout(path, f"{self._top_folder}/raw")
            n, edges, counts = files.n, files.edges, count_edges(files.cut_pieces(CHUNK_EDGES))
            if counts.edges != edges:
                raise UserError(f"{path} has {counts.edges:,} edges, but says that it has {edges:,}.")
            counts.check(path, n)
            y, split = _convert_labels(path, files.read_labels(), n), self._read_split(path, n)
        return EdgeStream(n, edges, files.cut_pieces, files.read_features, y, split)

    @property
    def _top_folder(self) -> str:
        """The name of the archive and of the folder in it."""
        return self.properties["download_name"]

    def _read_split(self, path: Path, n: int) -> Bytes:
        members = {}
        for name in SPLITS:
            file = FileRef(path, f"{self._top_folder}/split/{self.properties['split']}/{name}.csv.gz")
            with open_file(file) as ids:
                members[name] = np.loadtxt(ids, dtype=np.int64, ndmin=1)
        return make_split_from_ids(path, members, n)


@cache
def read_ogb_table() -> dict[str, dict[str, str]]:
    """Read the dataset table of the package, by dataset. Importing the package would access the network."""
    package = find_spec("ogb")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'ogb'", name="ogb")
    table = Path(package.submodule_search_locations[0]) / "nodeproppred" / "master.csv"
    with table.open(encoding="utf-8") as file:
        names, *rows = csv.reader(file)
    columns = {name: {row[0]: row[column] for row in rows} for column, name in enumerate(names) if column}
    return {name: column for name, column in columns.items() if column["is hetero"] == "False"}


class _TextLayout:
    """The text layout."""

    def __init__(self, path: Path, raw: str) -> None:
        self._path, self._raw = path, raw
        self.n, self.edges = self._read_number("num-node-list"), self._read_number("num-edge-list")

    def cut_pieces(self, at_once: int) -> list[Piece]:
        text = self._get_file("edge")
        error = partial(UserError, f"{text}: a line is not a pair of vertices.")
        return cut_into_pairs(text, at_once, START, error)

    def read_labels(self) -> Floats:
        with open_file(self._get_file("node-label")) as file:
            return np.genfromtxt(file, dtype=np.float32, delimiter=",", ndmin=1)

    def read_features(self) -> Floats:
        import pandas as pd

        filled, X = 0, None
        with open_file(self._get_file("node-feat")) as file:
            for rows in pd.read_csv(file, header=None, dtype=np.float32, chunksize=ROWS):
                X = np.empty((self.n, rows.shape[1]), np.float32) if X is None else X
                X[filled : filled + len(rows)] = rows.to_numpy()
                filled += len(rows)
        if X is None or filled != self.n:
            raise UserError(f"{self._path}: features for {filled:,} vertices, but there are {self.n:,}.")
        return X

    def _read_number(self, name: str) -> int:
        with open_file(self._get_file(name)) as file:
            return int(file.readline())

    def _get_file(self, name: str) -> FileRef:
        return FileRef(self._path, f"{self._raw}/{name}.csv.gz")


class _ArrayLayout:
    """The array layout. All sources come before all targets, so two readers read them concurrently."""

    def __init__(self, path: Path, raw: str) -> None:
        self._path, self._raw = path, raw
        self._ends = self._get_array("data", "edge_index")
        two, self.edges = read_header(self._ends).shape
        if two != 2:
            raise UserError(f"{self._ends} has the shape {two, self.edges}, expected (2, edges).")
        self.n = int(read_array(self._get_array("data", "num_nodes_list")).sum())

    def cut_pieces(self, at_once: int) -> list[Piece]:
        return [partial(read_edges, (self._ends, self._ends), (0, self.edges), self.edges, at_once)]

    def read_labels(self) -> Floats:
        return read_array(self._get_array("node-label", "node_label")).astype(np.float32).reshape(-1)

    def read_features(self) -> Floats:
        return map_extracted(self._get_array("data", "node_feat"), self._path.with_suffix(".node_feat.npy"))

    def _get_array(self, file: str, name: str) -> ArrayRef:
        return ArrayRef(self._path, (f"{self._raw}/{file}.npz", name))


def _convert_labels(path: Path, labels: Floats, n: int) -> Labels:
    """Convert to one class per vertex, or a 0 or 1 for each of many tasks; NaN means no label."""
    if len(labels) != n:
        raise UserError(f"{path}: labels have the shape {labels.shape}, but there are {n:,} vertices.")
    filled = np.where(np.isnan(labels), NO_LABEL, labels)
    return filled.astype(np.int64) if labels.ndim == 1 else filled.astype(np.int8)
