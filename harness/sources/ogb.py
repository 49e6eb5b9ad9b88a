"""Node property datasets of the Open Graph Benchmark, in the layout of text: ogbn-arxiv, ogbn-products.

    TOP/raw/{edge,node-feat,node-label,num-node-list,num-edge-list}.csv.gz    TOP/split/SPLIT/{train,valid,test}.csv.gz

Files have no header. They are read inside the archive: nothing is extracted, and no cache or pickle is made.
"""

from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from harness.errors import UserError
from harness.graph.model import TEST, TRAIN, VALID, Bytes, Floats, Ints
from harness.sources.archive import Place, opened
from harness.sources.refusal import refusing
from harness.sources.remote import Remote
from harness.sources.source import Rest, Source
from harness.sources.stream import Piece, Stream
from harness.sources.text import AT_ONCE, START, counted, pairs_of

EXPECTED = "the archive of a node property dataset of OGB, with raw/*.csv.gz and split/*/*.csv.gz in it"
ROWS = 1 << 17
"""Of features, parsed at a time."""


class Ogb(Source):
    """An archive of http://snap.stanford.edu/ogb, by its name there."""

    kind: Literal["ogb"]
    archive: str = Field(pattern=r"^[A-Za-z0-9][\w-]*$")
    """Without .zip; the top folder in it has the same name."""
    split: str = Field(pattern=r"^\w+$")
    """The folder of the published split."""
    sha256: str | None = None
    """Of the archive; none is published."""

    def remotes(self) -> list[Remote]:
        url = f"http://snap.stanford.edu/ogb/data/nodeproppred/{self.archive}.zip"
        return [Remote(url=url, file=f"raw/ogb/{self.archive}.zip", sha256=self.sha256)]

    def stream(self, rest: Rest) -> Stream:
        path = rest.folder / self.remotes()[0].file
        with refusing(path, EXPECTED):
            n, edges = (self._number(path, name) for name in ("num-node-list", "num-edge-list"))
            found = counted(self._pieces(path, AT_ONCE))
            if found.pairs != edges:
                raise UserError(f"{path} holds {found.pairs:,} edges, and says that it has {edges:,}.")
            if found.pairs and not (found.smallest >= 0 and found.largest < n):
                raise UserError(
                    f"{path}: edges name vertices {found.smallest} to {found.largest}, but there are {n:,}."
                )
            y, split = self._labels(path, n), self._split(path, n)
        return Stream(n, edges, partial(self._pieces, path), partial(self._features, path, n), y, split)

    def _raw(self, path: Path, name: str) -> Place:
        return Place(path, f"{self.archive}/raw/{name}.csv.gz")

    def _pieces(self, path: Path, at_once: int) -> list[Piece]:
        text = self._raw(path, "edge")
        return pairs_of(text, at_once, START, lambda: UserError(f"{text}: a line is no pair of vertices."))

    def _number(self, path: Path, name: str) -> int:
        with opened(self._raw(path, name)) as file:
            return int(file.readline())

    def _labels(self, path: Path, n: int) -> Ints:
        """One number a vertex; what is no number has no label."""
        with opened(self._raw(path, "node-label")) as file:
            found = np.genfromtxt(file, dtype=np.float64, ndmin=1)
        if found.shape != (n,):
            raise UserError(f"{path}: labels have the shape {found.shape}, but there are {n:,} vertices.")
        return np.where(np.isnan(found), -1, found).astype(np.int64)

    def _split(self, path: Path, n: int) -> Bytes:
        split = np.zeros(n, np.uint8)
        for value, part in ((TRAIN, "train"), (VALID, "valid"), (TEST, "test")):
            with opened(Place(path, f"{self.archive}/split/{self.split}/{part}.csv.gz")) as file:
                members = np.loadtxt(file, dtype=np.int64, ndmin=1)
            if len(members) and not (members.min() >= 0 and members.max() < n):
                raise UserError(
                    f"{path}: the {part} split names vertex {members.max()}, but there are {n:,}."
                )
            split[members] = value
        return split

    def _features(self, path: Path, n: int) -> Floats:
        import pandas as pd

        filled, X = 0, None
        with opened(self._raw(path, "node-feat")) as file:
            for rows in pd.read_csv(file, header=None, dtype=np.float32, chunksize=ROWS):
                X = np.empty((n, rows.shape[1]), np.float32) if X is None else X
                X[filled : filled + len(rows)] = rows.to_numpy()
                filled += len(rows)
        if X is None or filled != n:
            raise UserError(f"{path}: there are features of {filled:,} vertices, but {n:,} vertices.")
        return X
