"""The parts a card is made of: sources (a generator with its parameters, or files), features, labels, splits.

Only the choices and what they accept stand here; `harness.store.compose` follows them.
"""

from typing import Literal

from pydantic import Field, model_validator

from harness.validation import Frozen


class Rmat(Frozen):
    """A scale-free graph: skewed degrees, many isolated vertices (`harness.graph.rmat`)."""

    kind: Literal["rmat"]
    scale: int = Field(ge=1, le=30)
    """There are 2 ** scale vertices."""
    edge_factor: float = Field(16, gt=0, allow_inf_nan=False)
    """Edges drawn per vertex, before loops and duplicates are dropped."""
    a: float = Field(0.57, ge=0, le=1)
    b: float = Field(0.19, ge=0, le=1)
    c: float = Field(0.19, ge=0, le=1)

    @model_validator(mode="after")
    def _quadrants_fit(self) -> "Rmat":
        if self.a + self.b + self.c > 1:
            raise ValueError(f"a + b + c = {self.a + self.b + self.c:g}; they leave 1 - a - b - c >= 0 for d")
        return self


class Sbm(Frozen):
    """Planted classes that a graph network can learn and features alone cannot (`harness.graph.sbm`)."""

    kind: Literal["sbm"]
    n: int = Field(ge=2)
    mean_degree: float = Field(gt=0, allow_inf_nan=False)
    homophily: float = Field(ge=0, le=1)
    """The share of edges within a class."""


class Lattice(Frozen):
    """A road-like grid with missing edges (`harness.graph.lattice`)."""

    kind: Literal["lattice"]
    height: int = Field(ge=1)
    width: int = Field(ge=1)
    keep: float = Field(0.55, ge=0, le=1)
    """The share of horizontal and vertical edges that exist."""
    diagonal: float = Field(0.01, ge=0, le=1)
    """The share of diagonal edges that exist."""
    inner: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Vertices put on an edge, on average: lowers the mean degree towards 2."""
    connected: bool = True
    """Keep the largest component only."""


class MatrixFile(Frozen):
    """A Matrix Market file, .mtx or .mtx.gz."""

    kind: Literal["mtx"]
    path: str


class EdgeFile(Frozen):
    """A text file of edges, one a line; also gzipped. Further columns (weights) are ignored."""

    kind: Literal["edges"]
    path: str
    n: int | None = Field(None, ge=1)
    """The number of vertices. Without it the largest id decides, and vertices after the last edge are lost."""
    base: Literal[0, 1] = 0
    """The id of the first vertex."""
    header: bool = False
    """Whether the first line that is no comment names the columns."""


class NpzFile(Frozen):
    """A .npz file: scipy's save_npz, or the layouts of gnn-benchmark and heterophilous-graphs."""

    kind: Literal["npz"]
    path: str


class PlanetoidFiles(Frozen):
    """The eight files ind.NAME.* of Cora, Citeseer or Pubmed."""

    kind: Literal["planetoid"]
    path: str
    """Their folder."""
    dataset: str
    """Their NAME, for instance cora."""


class GaussianFeatures(Frozen):
    """A unit vector per class times `separation`, plus standard normal noise."""

    kind: Literal["gaussian"]
    width: int = Field(ge=1)
    separation: float = Field(1.0, ge=0, allow_inf_nan=False)


class UniformFeatures(Frozen):
    """Uniform in [0, 1); `normalise` divides each row by its sum."""

    kind: Literal["uniform"]
    width: int = Field(ge=1)
    normalise: bool = False


class FileFeatures(Frozen):
    """From the source's own file, or from `path` (.npy, .csv, .txt) with one row per vertex."""

    kind: Literal["file"]
    path: str | None = None
    normalise: bool = False


class PlantedLabels(Frozen):
    """The class the sbm planted."""

    kind: Literal["planted"]


class DegreeLabels(Frozen):
    """Vertices ranked by degree and cut into equal classes (Plexus). Nothing can be learned from them."""

    kind: Literal["degree"]


class UniformLabels(Frozen):
    """Drawn uniformly (CAGNET). Nothing can be learned from them."""

    kind: Literal["uniform"]


class FileLabels(Frozen):
    """From the source's own file, or from `path`; -1 stands for no label."""

    kind: Literal["file"]
    path: str | None = None


class RandomSplit(Frozen):
    """Each vertex is drawn into train or valid with these chances, else into test."""

    kind: Literal["random"]
    train: float = Field(gt=0, le=1)
    valid: float = Field(0.0, ge=0, le=1)

    @model_validator(mode="after")
    def _shares_fit(self) -> "RandomSplit":
        if self.train + self.valid > 1:
            raise ValueError(f"train + valid = {self.train + self.valid:g}; their sum is at most 1")
        return self


class AllTrain(Frozen):
    """Every vertex with a label trains (Plexus, CAGNET): there is nothing to test on."""

    kind: Literal["all"]


class FileSplit(Frozen):
    """From the source's own file (`index` picks one of several), or from `path`: 0 none, 1 train, 2 valid, 3 test."""

    kind: Literal["file"]
    path: str | None = None
    index: int = Field(0, ge=0)


Source = Rmat | Sbm | Lattice | MatrixFile | EdgeFile | NpzFile | PlanetoidFiles
Features = GaussianFeatures | UniformFeatures | FileFeatures
Labels = PlantedLabels | DegreeLabels | UniformLabels | FileLabels
Split = RandomSplit | AllTrain | FileSplit
