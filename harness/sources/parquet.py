"""Edges in parquet: the first two columns of whole numbers are sources and targets. Row groups are read one by one."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from harness.errors import UserError
from harness.sources.refusal import IN_CARD, refusing
from harness.sources.source import FileSource, Rest
from harness.sources.stream import Edges, Piece, Stream
from harness.sources.text import AT_ONCE, counted
from harness.validation import VERTICES

EXPECTED = "a parquet file whose first two columns of whole numbers are the ends of edges"


class Parquet(FileSource):
    """A parquet file of edges."""

    kind: Literal["parquet"]
    n: int | None = Field(None, ge=1, le=VERTICES)
    """The number of vertices. Without it the largest id decides."""

    def stream(self, rest: Rest) -> Stream:
        import pyarrow as pa

        path = rest.folder / self.path
        try:
            with refusing(path, EXPECTED):
                found = counted(_pieces(path, AT_ONCE))
        except pa.ArrowException as error:
            raise UserError(f"{path} cannot be read: {error}. Expected {EXPECTED}.") from None
        n = found.vertices(path, self.n)
        if not found.within(range(n)):
            ids = f"{found.smallest} to {found.largest}"
            raise UserError(f"{path}: ids go from {ids}, not 0 to {n - 1}: {IN_CARD['n']}.")
        return Stream(n, found.pairs, partial(_pieces, path))


def _pieces(path: Path, at_once: int) -> list[Piece]:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        columns = _ends(path, file)
        groups = range(file.num_row_groups)
    return [partial(_group, path, columns, group, at_once) for group in groups]


def _ends(path: Path, file: Any) -> list[str]:
    import pyarrow as pa

    whole = [field.name for field in file.schema_arrow if pa.types.is_integer(field.type)]
    if len(whole) < 2:
        raise UserError(f"{path} has the columns {', '.join(file.schema_arrow.names)}. Expected {EXPECTED}.")
    return whole[:2]


def _group(path: Path, columns: list[str], group: int, at_once: int) -> Iterator[Edges]:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        for batch in file.iter_batches(at_once, [group], columns):
            source, target = (batch.column(name) for name in columns)
            if source.null_count or target.null_count:
                raise UserError(f"{path}: an end of an edge is null.")
            yield source.to_numpy().astype(np.int64), target.to_numpy().astype(np.int64)
