"""The card of a dataset: one YAML file that describes the source of a graph and the data of its vertices.

A card is datasets/catalog/NAME.yaml, or imported/NAME.yaml in the data folder; the name of the file is the name of the
dataset.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from harness.graph.model import LabelTask, Weighting
from harness.sources import AnySource
from harness.validation import CLASSES, WIDTH, Frozen, Seed

# The data of the vertices in a card: features, labels, and the split. `harness.store.compose` follows the card.


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
    """Features are read from the source's own file, or from `path` (.npy, .csv, .txt) with one row per vertex."""

    kind: Literal["file"]
    path: str | None = None
    normalise: bool = False


class PlantedLabels(Frozen):
    """The class that the sbm planted; multi-label, a set of classes drawn for each planted class."""

    kind: Literal["planted"]


class DegreeLabels(Frozen):
    """Vertices ranked by degree and cut into equal classes (Plexus). No model can learn from these labels."""

    kind: Literal["degree"]


class UniformLabels(Frozen):
    """Labels drawn uniformly (CAGNET); multi-label, each class with an even chance. No model can learn from them."""

    kind: Literal["uniform"]


class FileLabels(Frozen):
    """Labels are read from the source's own file, or from `path`; -1 stands for no label.

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
    """Every vertex with a label trains (Plexus, CAGNET): no vertex is left to test on."""

    kind: Literal["all"]


class FileSplit(Frozen):
    """The split of the source's own file (`index` picks one), or of `path`: 0 none, 1 train, 2 valid, 3 test."""

    kind: Literal["file"]
    path: str | None = None
    index: int = Field(0, ge=0)


Features = GaussianFeatures | UniformFeatures | FileFeatures
Labels = PlantedLabels | DegreeLabels | UniformLabels | FileLabels
Split = RandomSplit | AllTrain | FileSplit


class Expected(Frozen):
    """Counts that the graph must have; those that are given are checked."""

    n: int | None = None
    stored: int | None = None
    loops: int | None = None
    duplicates: int | None = None
    nnz_sym: int | None = None
    nnz_adj: int | None = None
    tolerance: float = Field(0, ge=0, lt=1)
    """The relative error of nnz_sym and nnz_adj, for a published number that is rounded or a graph that is drawn."""
    features: int | None = None
    """The width of features that a file brings."""
    labelled: int | None = None
    """The vertices that have a label."""
    training: int | None = None
    """Those among them in the training split."""


class DatasetCard(Frozen):
    """Everything that defines a dataset, up to the order of its vertices."""

    name: str = Field(min_length=1)
    description: str = ""
    licence: str = ""
    """The licence of the dataset, in its publisher's words; empty for a drawn graph."""
    source: AnySource
    directed: bool = Field(False, validate_default=True)
    weights: Weighting | None = Field(None, validate_default=True)
    """`normalised` or `raw`: the edges of the file carry weights, and A has their values; null: every edge counts 1."""
    task: LabelTask = "single-label"
    """One class a vertex and cross-entropy, or any number of classes and binary cross-entropy."""
    classes: int = Field(ge=1, le=CLASSES)
    features: Annotated[Features, Field(discriminator="kind")]
    labels: Annotated[Labels, Field(discriminator="kind")]
    split: Annotated[Split, Field(discriminator="kind")]
    seed: Seed = 0
    """The seed of all drawn data: edges, features, labels, split."""
    expected: Expected = Expected()
    nature: Literal["power", "clusters", "lattice"] | None = None
    """The nature of its twins (`harness.store.catalog`): power-law degrees, the same with clusters, or a road map."""

    @field_validator("directed")
    @classmethod
    def _as_the_source_draws(cls, directed: bool, known: ValidationInfo) -> bool:
        if getattr(known.data.get("source"), "directed", directed) != directed:
            raise ValueError("the source is drawn the other way; source.directed and directed are the same")
        return directed

    @field_validator("weights")
    @classmethod
    def _given_by_the_source(cls, weights: Weighting | None, known: ValidationInfo) -> Weighting | None:
        source = known.data.get("source")
        if weights and source is not None and not source.reads_weights:
            raise ValueError(f"the source {source.kind} has no weights of edges")
        return weights

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
        """The expected edges, each once in an undirected graph; the best of the counts that the card gives."""
        expected, ends = self.expected, 1 if self.directed else 2
        if self.nonzeros is not None and expected.n is not None:
            return (self.nonzeros - expected.n) // ends
        return expected.stored if expected.nnz_sym is None else expected.nnz_sym // ends

    @property
    def nonzeros(self) -> int | None:
        """The expected nonzeros of A, loops included; None if the card does not give the count."""
        expected = self.expected
        if expected.nnz_adj is not None or expected.nnz_sym is None or expected.n is None:
            return expected.nnz_adj
        return expected.nnz_sym + expected.n

    def content(self) -> dict[str, Any]:
        """The part of the card that decides the data: all but its prose and its checks.

        A key that is younger than some stores counts only where it is set: the stores of other cards keep their names.
        """
        fields = self.model_dump(mode="json", exclude={"description", "licence", "expected", "nature"})
        for place, key in ((fields, "weights"), (fields["source"], "names")):
            if not place.get(key):
                place.pop(key, None)
        return fields
