"""The card of a dataset: one YAML file that describes the source of a graph and the data of its vertices.

A card is datasets/catalog/NAME.yaml, or imported/NAME.yaml in the data folder; the name of the file is the name of the
dataset.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from harness.base.errors import UserError
from harness.base.validation import CLASSES, VERTICES, WIDTH, Frozen, Seed
from harness.graph.generators.shapes import CommunityLaw
from harness.graph.model import LabelTask, StageCounts, Weighting
from harness.graph.sources import AnySource

# Recipes for the data of the vertices: features, labels, and the split. `harness.graph.store.contents` applies them.


class GaussianFeatures(Frozen):
    """`separation` times the unit vector of the class, plus standard normal noise."""

    kind: Literal["gaussian"]
    width: int = Field(ge=1, le=WIDTH)
    separation: float = Field(1.0, ge=0)


class UniformFeatures(Frozen):
    """Uniform in [0, 1); `normalise` divides each row by its sum."""

    kind: Literal["uniform"]
    width: int = Field(ge=1, le=WIDTH)
    normalise: bool = False


class FileFeatures(Frozen):
    """Read from the source's own file, or from `path` (.npy, .csv, .txt) with one row per vertex."""

    kind: Literal["file"]
    path: str | None = None
    normalise: bool = False


class PlantedLabels(Frozen):
    """The class planted by the sbm; if multi-label, a set of classes drawn for each planted class."""

    kind: Literal["planted"]


class DegreeLabels(Frozen):
    """Vertices ranked by degree and cut into equal classes (Plexus). Accuracies on these labels are meaningless."""

    kind: Literal["degree"]


class UniformLabels(Frozen):
    """Drawn uniformly (CAGNET); if multi-label, each class with probability 1/2. Accuracies are meaningless."""

    kind: Literal["uniform"]


class FileLabels(Frozen):
    """Read from the source's own file, or from `path`; -1 means no label.

    If multi-label, a vertex has a row with a 0 or 1 for each class, or -1 in all columns.
    """

    kind: Literal["file"]
    path: str | None = None


class RandomSplit(Frozen):
    """Each vertex is assigned to train or valid with these probabilities, else to test."""

    kind: Literal["random"]
    train: float = Field(gt=0, le=1)
    valid: float = Field(0.0, ge=0, le=1)

    @model_validator(mode="after")
    def _check_sum(self) -> "RandomSplit":
        if self.train + self.valid > 1:
            raise ValueError(f"train + valid = {self.train + self.valid:g}; their sum is at most 1")
        return self


class AllTrain(Frozen):
    """Every labelled vertex is used for training (Plexus, CAGNET); none is left for testing."""

    kind: Literal["all"]


class FileSplit(Frozen):
    """Read from the source's own file (`index` selects one), or from `path`: 0 none, 1 train, 2 valid, 3 test."""

    kind: Literal["file"]
    path: str | None = None
    index: int = Field(0, ge=0)


Features = GaussianFeatures | UniformFeatures | FileFeatures
Labels = PlantedLabels | DegreeLabels | UniformLabels | FileLabels
Split = RandomSplit | AllTrain | FileSplit


class Expected(Frozen):
    """Counts that the graph must have. Only the counts that are set are checked."""

    n: int | None = None
    stored: int | None = None
    loops: int | None = None
    duplicates: int | None = None
    nnz_sym: int | None = None
    nnz_adj: int | None = None
    tolerance: float = Field(0, ge=0, lt=1)
    """The accepted relative error of nnz_sym and nnz_adj, for rounded published numbers and generated graphs."""
    features: int | None = None
    """The width of features that are read from a file."""
    labelled: int | None = None
    """The number of vertices with a label."""
    training: int | None = None
    """The number of labelled vertices in the training split."""


class PublishedRows(Frozen):
    """The rows of others that the parts of METIS need together, as published for the graph."""

    parts: int = Field(ge=2, le=VERTICES)
    rows: int = Field(ge=1)
    source: str = Field(min_length=1)


class PublishedCommunities(Frozen):
    """The communities of twins, fitted to published cuts of the graph (`harness.graph.generators.community_counts`)."""

    law: CommunityLaw
    published: tuple[PublishedRows, ...] = Field(min_length=1, max_length=2)
    """What the law was fitted to."""
    fitted_to: tuple[str, ...] = ()
    """The claims of papers among them. A fitted claim is not a test."""


class DatasetCard(Frozen):
    """Everything that defines a dataset, up to the order of its vertices."""

    name: str = Field(min_length=1)
    description: str = ""
    licence: str = ""
    """The licence as its publisher states it; empty for a generated graph."""
    source: AnySource
    directed: bool = Field(False, validate_default=True)
    weights: Weighting | None = Field(None, validate_default=True)
    """`normalised` or `raw` if A has the edge weights of the file; null if every edge has the weight 1."""
    task: LabelTask = "single-label"
    """One class per vertex with cross-entropy, or any number of classes with binary cross-entropy."""
    classes: int = Field(ge=1, le=CLASSES)
    features: Annotated[Features, Field(discriminator="kind")]
    labels: Annotated[Labels, Field(discriminator="kind")]
    split: Annotated[Split, Field(discriminator="kind")]
    seed: Seed = 0
    """The seed of all generated data: edges, features, labels, split."""
    expected: Expected = Expected()
    nature: Literal["power", "clusters", "lattice"] | None = None
    """The kind of its twins (`graph.cards.twin_card`): power-law degrees, these with clusters, or a road map."""
    communities: PublishedCommunities | None = None
    """If a cut of the graph is published, its twins have communities by these numbers instead of clusters."""

    @field_validator("directed")
    @classmethod
    def _check_directed(cls, directed: bool, known: ValidationInfo) -> bool:
        if getattr(known.data.get("source"), "directed", directed) != directed:
            raise ValueError("source.directed and directed must be equal")
        return directed

    @field_validator("weights")
    @classmethod
    def _check_weights(cls, weights: Weighting | None, known: ValidationInfo) -> Weighting | None:
        source = known.data.get("source")
        if weights and source is not None and not source.reads_weights:
            raise ValueError(f"the source {source.kind} has no edge weights")
        return weights

    @field_validator("classes")
    @classmethod
    def _check_classes(cls, classes: int, known: ValidationInfo) -> int:
        source = known.data.get("source")
        if source is not None and (reason := source.explain_misfit(classes)):
            raise ValueError(reason)
        return classes

    @field_validator("labels")
    @classmethod
    def _check_planted(cls, labels: Labels, known: ValidationInfo) -> Labels:
        source = known.data.get("source")
        if labels.kind == "planted" and source is not None and not source.plants_labels:
            raise ValueError(
                f"the source {source.kind} does not plant labels, only sbm does; use degree, uniform or file"
            )
        return labels

    @field_validator("labels")
    @classmethod
    def _check_task(cls, labels: Labels, known: ValidationInfo) -> Labels:
        if labels.kind == "degree" and known.data.get("task") == "multi-label":
            raise ValueError("degree labels are single-label; for multi-label use uniform, planted or file")
        return labels

    def list_source_files(self, folder: Path) -> dict[str, Path]:
        """Return every file that the card reads, by its name in the card."""
        names = [getattr(recipe, "path", None) for recipe in (self.features, self.labels, self.split)]
        return {name: folder / name for name in [*self.source.list_files(), *names] if name is not None}

    @property
    def has_vertex_names(self) -> bool:
        """True if vertices have names in the edge file."""
        return bool(getattr(self.source, "names", False))

    @property
    def edges(self) -> int | None:
        """The expected number of edges, by the most precise count of the card. Undirected edges count once."""
        expected, ends = self.expected, 1 if self.directed else 2
        if self.nonzeros is not None and expected.n is not None:
            return (self.nonzeros - expected.n) // ends
        return expected.stored if expected.nnz_sym is None else expected.nnz_sym // ends

    def count_edges(self) -> tuple[int | None, int | None]:
        """Return the vertices and the edges that the card expects, or that its generator draws."""
        if self.expected.n is None and (generated := self.source.get_size()):
            return generated
        return self.expected.n, self.edges

    @property
    def nonzeros(self) -> int | None:
        """The expected nonzeros of A, loops included; None if the card does not say."""
        expected = self.expected
        if expected.nnz_adj is not None or expected.nnz_sym is None or expected.n is None:
            return expected.nnz_adj
        return expected.nnz_sym + expected.n

    @property
    def is_real(self) -> bool:
        """True if the edges come from files, and False if the graph is generated."""
        return bool(self.source.list_files())

    def describe_generated_data(self) -> str:
        """Return which data of the vertices are generated, such as "random features, a random split"; "" if none is."""
        recipes = {
            "uniform features": "random features",
            "gaussian features": "features drawn around their classes",
            "degree labels": "labels by degree",
            "uniform labels": "random labels",
            "random split": "a random split",
        }
        kinds = (f"{getattr(self, part).kind} {part}" for part in ("features", "labels", "split"))
        return ", ".join(recipes[kind] for kind in kinds if kind in recipes)

    def compare_nonzeros(self, built: int) -> dict[str, Any]:
        """Return the expected nonzeros (for a twin, the published number) and how far a graph deviates."""
        if self.nonzeros is None:
            return {}
        return {"expected": self.nonzeros, "built": built, "deviation": f"{built / self.nonzeros - 1:+.3%}"}

    def check_graph(self, n: int, features: int, counts: StageCounts) -> None:
        """Raise an error if a graph does not have the counts that the card expects."""
        self.check_counts({"n": n, "features": features, **asdict(counts)})

    def check_counts(self, actual: Mapping[str, int]) -> None:
        """Raise an error if counts are not those that the card expects."""
        expected = self.expected.model_dump(exclude_none=True, include=set(actual))
        wrong = [
            f"{key} is {actual[key]:,}, expected {value:,}"
            + (f" within {tolerance:.3%}" if tolerance else "")
            for key, value in expected.items()
            for tolerance in [self.expected.tolerance if key in ("nnz_sym", "nnz_adj") else 0]
            if abs(actual[key] - value) > tolerance * value
        ]
        if wrong:
            raise UserError(
                f"dataset {self.name} is not the graph its card expects: {'; '.join(wrong)}. Either the file is "
                "another version of the data, or the counts under `expected` are wrong."
            )

    def dump_data_fields(self) -> dict[str, Any]:
        """Dump the fields that determine the data: all except prose and expected counts.

        Keys that were added after stores existed are included only if they are set, so other stores keep their names.
        """
        fields = self.model_dump(
            mode="json", exclude={"description", "licence", "expected", "nature", "communities"}
        )
        for place, key in ((fields, "weights"), (fields["source"], "names")):
            if not place.get(key):
                place.pop(key, None)
        return fields
