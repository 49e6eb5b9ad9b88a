"""Edges in parquet: the first two columns of integers are sources and targets. Row groups are read one at a time."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from harness.base.errors import UserError
from harness.base.validation import VERTICES
from harness.graph.sources.named_edges import VerticesHaveNames, number_names
from harness.graph.sources.read_errors import CARD_HINTS, convert_read_errors
from harness.graph.sources.source import FileSource, ReadOptions
from harness.graph.sources.stream import (
    CHUNK_EDGES,
    Edges,
    EdgeStream,
    count_edges,
    make_missing_weights_error,
)

PARQUET_EXPECTED = "a parquet file whose first two integer columns are the ends of edges"
NAMED_PARQUET_EXPECTED = "a parquet file whose first two text columns are the names of the ends"


class Parquet(FileSource):
    """A parquet file of edges."""

    kind: Literal["parquet"]
    reads_weights: ClassVar[bool] = True
    n: int | None = Field(None, ge=1, le=VERTICES)
    """The number of vertices. By default it follows from the largest id."""
    names: VerticesHaveNames = False
    """True if vertices have names, in the first two text columns."""

    def open_stream(self, options: ReadOptions) -> EdgeStream:
        import pyarrow as pa

        path = options.folder / self.path
        try:
            with convert_read_errors(path, PARQUET_EXPECTED):
                if self.names:
                    chunks = partial(_cut_row_groups, path, (options.weights is not None, True))
                    return number_names(path, chunks, options.weights, NAMED_PARQUET_EXPECTED)
                pieces = partial(_cut_row_groups, path, (options.weights is not None, False))
                counts = count_edges(pieces(CHUNK_EDGES), path, options.weights)
        except pa.ArrowException as error:
            raise UserError(f"{path} cannot be read: {error}. Expected {PARQUET_EXPECTED}.") from None
        n = counts.resolve_vertex_count(path, self.n)
        counts.check(path, n, f" If the ids are right, {CARD_HINTS['n']}.")
        return EdgeStream(n, counts.edges, pieces)


WEIGHT_COLUMNS = ("weight", "weights", "edge_weight")


def _cut_row_groups(path: Path, wanted: tuple[bool, bool], at_once: int) -> list[Any]:
    """Return a piece for each row group. `wanted` says whether to read weights, and whether vertices have names."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    weighted, named = wanted
    with ParquetFile(path) as file:
        schema, groups = file.schema_arrow, range(file.num_row_groups)
    columns = [field.name for field in schema if (_is_text if named else pa.types.is_integer)(field.type)][:2]
    if len(columns) < 2:
        expected = NAMED_PARQUET_EXPECTED if named else PARQUET_EXPECTED
        raise UserError(f"{path} has the columns {', '.join(schema.names)}. Expected {expected}.")
    if weighted:
        numbers = [field.name for field in schema if pa.types.is_integer(field.type) or _is_float(field.type)]
        others = [name for name in numbers if name not in columns]
        weights = [name for name in WEIGHT_COLUMNS if name in others] or others
        if not weights:
            raise make_missing_weights_error(path, f"its columns are {', '.join(schema.names)}")
        columns.append(weights[0])
    read = _read_named_row_group if named else _read_row_group
    return [partial(read, path, columns, group, at_once) for group in groups]


def _is_float(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_floating(kind))


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind))


def _read_columns(path: Path, columns: list[str], group: int, at_once: int) -> Iterator[list[Any]]:
    """Yield the columns of a row group, some rows at a time."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        for batch in file.iter_batches(at_once, [group], columns):
            read: list[Any] = [batch.column(name) for name in columns]
            if any(column.null_count for column in read):
                raise UserError(f"{path}: an end or a weight of an edge is null.")
            yield read


def _read_row_group(path: Path, columns: list[str], group: int, at_once: int) -> Iterator[Edges]:
    for ends in _read_columns(path, columns, group, at_once):
        source, target = (end.to_numpy().astype(np.int64) for end in ends[:2])
        yield (source, target, *(end.to_numpy().astype(np.float64) for end in ends[2:]))


def _read_named_row_group(path: Path, columns: list[str], group: int, at_once: int) -> Iterator[list[Any]]:
    import pyarrow as pa

    for ends in _read_columns(path, columns, group, at_once):
        yield [*(end.cast(pa.string()).cast(pa.binary()) for end in ends[:2]), *ends[2:]]
