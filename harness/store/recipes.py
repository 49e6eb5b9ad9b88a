"""What a card says of its vertices: features, labels, and the split. `harness.store.compose` follows it."""

from typing import Literal

from pydantic import Field, model_validator

from harness.validation import WIDTH, Frozen


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
