"""Posts of Reddit, as the authors of GraphSAGE made them and DGL publishes them; not the smaller Reddit2.

The archive holds reddit_graph.npz, a symmetric matrix (row, col, shape), and reddit_data.npz (feature, label,
node_types).
"""

from functools import partial
from typing import Literal

import numpy as np

from harness.errors import UserError
from harness.graph.model import Floats
from harness.sources.arrays import ArrayIn, edges_of, head_of, mapped, whole_array
from harness.sources.refusal import refusing
from harness.sources.remote import Remote
from harness.sources.source import Rest, Source
from harness.sources.stream import Piece, Stream
from harness.sources.text import AT_ONCE, counted

EXPECTED = "the archive with reddit_graph.npz and reddit_data.npz"


class Reddit(Source):
    """Without keys of its own."""

    kind: Literal["reddit"]
    sha256: str | None = None

    def remotes(self) -> list[Remote]:
        return [
            Remote(
                url="https://data.dgl.ai/dataset/reddit.zip", file="raw/reddit/reddit.zip", sha256=self.sha256
            )
        ]

    def stream(self, rest: Rest) -> Stream:
        path = rest.folder / self.remotes()[0].file
        graph, data = "reddit_graph.npz", "reddit_data.npz"
        with refusing(path, EXPECTED):
            row, col = ArrayIn(path, (graph, "row")), ArrayIn(path, (graph, "col"))
            (entries,), n = head_of(row).shape, int(whole_array(ArrayIn(path, (graph, "shape")))[0])
            pieces = partial(_pieces, row, col, entries)
            found = counted(pieces(AT_ONCE))
            if not found.within(range(n)):
                raise UserError(f"{path}: entries name vertices up to {found.largest}, but there are {n:,}.")
            y = whole_array(ArrayIn(path, (data, "label"))).astype(np.int64).reshape(-1)
            split = whole_array(ArrayIn(path, (data, "node_types"))).astype(np.uint8).reshape(-1)

        def features() -> Floats:
            return mapped(ArrayIn(path, (data, "feature")), path.with_suffix(".feature.npy"))

        return Stream(n, entries, pieces, features, y, split)


def _pieces(row: ArrayIn, col: ArrayIn, entries: int, at_once: int) -> list[Piece]:
    return [partial(edges_of, (row, col), (0, 0), entries, at_once)]
