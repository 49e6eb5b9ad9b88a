"""The card of a dataset: one YAML file that says where a graph comes from and what training reads of it.

A card is datasets/catalog/NAME.yaml; the name of the file is the name of the dataset.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from harness.graph.model import LabelTask
from harness.sources import AnySource
from harness.validation import CLASSES, WIDTH, Frozen, Seed

# What a card says of its vertices: features, labels, and the split. `harness.store.compose` follows it.


class GaussianFeatures(Frozen):
    """A unit vector per class times `separation`, plus standard normal noise."""

    kind: Literal["gaussian"]
    width: int = Field(ge=1, le=WIDTH)
    separation: float = Field(1.0, ge=0)


class UniformFeatures(Frozen):
    """Uniform in [0, 1); `normalise` divides each row by its sum."""

    kind: Literal["uniform"]
    width: int = Field(ge=1, le=WIDTH)
    normalise: bool = False


class FileFeatures(Frozen):
    """From the source's own file, or from `path` (.npy, .csv, .txt) with one row per vertex."""

    kind: Literal["file"]
    path: str | None = None
    normalise: bool = False


class PlantedLabels(Frozen):
    """The class the sbm planted; multi-label, the set of classes that is drawn for each of those."""

    kind: Literal["planted"]


class DegreeLabels(Frozen):
    """Vertices ranked by degree and cut into equal classes (Plexus). Nothing can be learned from them."""

    kind: Literal["degree"]


class UniformLabels(Frozen):
    """Drawn uniformly (CAGNET); multi-label, each class with an even chance. Nothing can be learned from them."""

    kind: Literal["uniform"]


class FileLabels(Frozen):
    """From the source's own file, or from `path`; -1 stands for no label.

    Multi-label, a vertex has a row of zeros and ones, one a class, or -1 throughout.
    """

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


Features = GaussianFeatures | UniformFeatures | FileFeatures
Labels = PlantedLabels | DegreeLabels | UniformLabels | FileLabels
Split = RandomSplit | AllTrain | FileSplit


class Expected(Frozen):
    """Counts that the graph must have; the ones that are given are checked."""

    n: int | None = None
    stored: int | None = None
    loops: int | None = None
    duplicates: int | None = None
    nnz_sym: int | None = None
    nnz_adj: int | None = None
    tolerance: float = Field(0, ge=0, lt=1)
    """The share by which nnz_sym and nnz_adj may be off, where a published number is rounded or a graph is drawn."""
    features: int | None = None
    """The width of features that a file brings."""


class DatasetCard(Frozen):
    """Everything that defines a dataset, up to the order of its vertices."""

    name: str = Field(min_length=1)
    description: str = ""
    licence: str = ""
    """Under which it is published, in its publisher's words; none of what is drawn."""
    source: AnySource
    directed: bool = Field(False, validate_default=True)
    task: LabelTask = "single-label"
    """One class a vertex and cross-entropy, or any number of them and binary cross-entropy."""
    classes: int = Field(ge=1, le=CLASSES)
    features: Annotated[Features, Field(discriminator="kind")]
    labels: Annotated[Labels, Field(discriminator="kind")]
    split: Annotated[Split, Field(discriminator="kind")]
    seed: Seed = 0
    """Of everything that is drawn: edges, features, labels, split."""
    expected: Expected = Expected()
    nature: Literal["power", "clusters", "lattice"] | None = None
    """Of its twins (`harness.store.catalog`): degrees by a power law, dense clusters besides, or a map of roads."""

    @field_validator("directed")
    @classmethod
    def _as_the_source_draws(cls, directed: bool, known: ValidationInfo) -> bool:
        if getattr(known.data.get("source"), "directed", directed) != directed:
            raise ValueError("the source is drawn the other way; source.directed and directed are the same")
        return directed

    @field_validator("classes")
    @classmethod
    def _suit_the_source(cls, classes: int, known: ValidationInfo) -> int:
        source = known.data.get("source")
        if source is not None and (reason := source.misfit(classes)):
            raise ValueError(reason)
        return classes

    @field_validator("labels")
    @classmethod
    def _planted_by_the_source(cls, labels: Labels, known: ValidationInfo) -> Labels:
        source = known.data.get("source")
        if labels.kind == "planted" and source is not None and not source.plants_labels:
            raise ValueError(
                f"the source {source.kind} plants no labels, only sbm does; use degree, uniform or file"
            )
        return labels

    @field_validator("labels")
    @classmethod
    def _of_the_task(cls, labels: Labels, known: ValidationInfo) -> Labels:
        if labels.kind == "degree" and known.data.get("task") == "multi-label":
            raise ValueError(
                "a degree gives a vertex one class; for multi-label use uniform, planted or file"
            )
        return labels

    @property
    def edges(self) -> int | None:
        """As many as are expected, of an undirected graph each once; of what is known, that which says most."""
        expected, ends = self.expected, 1 if self.directed else 2
        if self.nonzeros is not None and expected.n is not None:
            return (self.nonzeros - expected.n) // ends
        return expected.stored if expected.nnz_sym is None else expected.nnz_sym // ends

    @property
    def nonzeros(self) -> int | None:
        """The nonzeros that are expected of A, loops among them; None where the card does not say."""
        expected = self.expected
        if expected.nnz_adj is not None or expected.nnz_sym is None or expected.n is None:
            return expected.nnz_adj
        return expected.nnz_sym + expected.n

    def content(self) -> dict[str, Any]:
        """What the data depends on: the card without its prose and its checks."""
        return self.model_dump(mode="json", exclude={"description", "licence", "expected", "nature"})
