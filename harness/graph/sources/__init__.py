"""Sources of graphs: one module per file format. Nothing here accesses the network.

`KINDS` names the class of each `kind` in a card. Its module is imported when a card has this kind.
"""

from importlib import import_module
from typing import Annotated, Any

from pydantic import PlainValidator, SerializeAsAny, ValidationError

from harness.base.validation import suggest_names
from harness.graph.sources.source import ReadOptions as ReadOptions
from harness.graph.sources.source import Source

KINDS = {
    "communities": "generated:CommunitiesSource",
    "edges": "edge_list:EdgeList",
    "graphsaint": "graphsaint:GraphSaint",
    "lattice": "generated:LatticeSource",
    "metis": "metis:Metis",
    "mtx": "matrix_market:MatrixMarket",
    "npz": "npz:Npz",
    "ogb": "ogb:Ogb",
    "parquet": "parquet_edges:Parquet",
    "planetoid": "planetoid:Planetoid",
    "pyg": "pyg_file:PygFile",
    "reddit": "reddit:Reddit",
    "rmat": "generated:RmatSource",
    "sbm": "generated:SbmSource",
    "suitesparse": "matrix_market:SuiteSparse",
    "twin": "generated:TwinSource",
}
"""The class of each kind, as module:class of this package."""
REMOVED = {
    "combblas": "use kind: mtx. CombBLAS writes Matrix Market files with ParallelWriteMM",
    "triples": "use kind: edges with names: true, which reads the same files",
}
"""Kinds that there were, and what to use instead."""


def load_kind(kind: str) -> type[Source]:
    """Import the class of a kind."""
    if kind in REMOVED:
        raise ValueError(f"the kind {kind} is no longer read; {REMOVED[kind]}")
    if kind not in KINDS:
        raise ValueError(f"there is no such kind.{suggest_names(kind, KINDS)} Known: {', '.join(KINDS)}")
    module, _, name = KINDS[kind].partition(":")
    source: type[Source] = getattr(import_module(f"harness.graph.sources.{module}"), name)
    return source


def make_source(fields: Any) -> Source:
    """Return the source that a card describes. The location of an error begins with the kind, as in a tagged union."""
    if isinstance(fields, Source):
        return fields
    kind = fields.get("kind") if isinstance(fields, dict) else None
    if not isinstance(kind, str):
        raise ValueError(f"expected a mapping with a kind: {', '.join(KINDS)}")
    try:
        return load_kind(kind).model_validate(fields)
    except ValidationError as error:
        faults: list[Any] = [{**fault, "loc": (kind, *fault["loc"])} for fault in error.errors()]
        raise ValidationError.from_exception_data(kind, faults) from None


AnySource = SerializeAsAny[Annotated[Source, PlainValidator(make_source)]]
"""The accepted values of `source` in a card."""
