"""Sources of graphs: one module per file format or generator. Nothing here accesses the network."""

from typing import Annotated

from pydantic import Field

from harness.sources.communities import CommunitiesSource
from harness.sources.edge_list import EdgeList
from harness.sources.graphsaint import GraphSaint
from harness.sources.hipmcl import CombBlas, Triples
from harness.sources.lattice import LatticeSource
from harness.sources.matrix_market import MatrixMarket, SuiteSparse
from harness.sources.metis import Metis
from harness.sources.npz import Npz
from harness.sources.ogb import Ogb
from harness.sources.parquet_edges import Parquet
from harness.sources.planetoid import Planetoid
from harness.sources.pyg_file import PygFile
from harness.sources.reddit import Reddit
from harness.sources.rmat import RmatSource
from harness.sources.sbm import SbmSource
from harness.sources.source import ReadOptions as ReadOptions
from harness.sources.twin import TwinSource

AnySource = Annotated[
    RmatSource
    | SbmSource
    | LatticeSource
    | CommunitiesSource
    | MatrixMarket
    | EdgeList
    | Npz
    | Planetoid
    | SuiteSparse
    | Ogb
    | Reddit
    | Parquet
    | Metis
    | PygFile
    | GraphSaint
    | Triples
    | CombBlas
    | TwinSource,
    Field(discriminator="kind"),
]
"""The accepted values of `source` in a card."""
