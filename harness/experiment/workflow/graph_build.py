"""Builds of graphs: the files, options and jobs by which the workflow builds a dataset in one order."""

import os
import shlex
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from harness.base.documents import read_yaml
from harness.base.errors import UserError
from harness.graph.cards.catalog import load_card
from harness.graph.store.location import fits_in_memory
from harness.spec.dataset import COMPUTED, FILE
from harness.spec.root import MARKER, find_imported_folder

ORDER = "{dataset}-{permutation}-s{seed}-{partition}-{parts}"
"""The name of a store within the workflow, as a pattern of wildcards."""


def stores_folder() -> str:
    """Return the folder of the stores, in which the markers of builds lie: they are deleted with the stores."""
    return os.environ.get("HARNESS_DATASETS", "datasets/store")


class GraphBuild(NamedTuple):
    """A store to build: a dataset in one order. The fields are the wildcards of the build rules."""

    dataset: str
    permutation: str
    seed: int | str
    partition: str
    parts: int | str

    @classmethod
    def from_wildcards(cls, wildcards: Mapping[str, str]) -> "GraphBuild":
        """Return the build that the wildcards of a rule describe."""
        return cls(**{field: wildcards[field] for field in cls._fields})

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "GraphBuild":
        """Return the build that the run of a spec needs."""
        choice = spec["dataset"]
        return cls(choice["name"], *(choice[field] for field in cls._fields[1:]))

    @property
    def name(self) -> str:
        """The name of the store in file names."""
        return ORDER.format(**self._asdict())

    @property
    def marker(self) -> str:
        """The marker of the finished build."""
        return f"{stores_folder()}/.built/{self.name}"

    @property
    def is_small(self) -> bool:
        """True if the jobs of the runs build the store. The build of an invalid card reports its errors."""
        try:
            return not self.partition_files and fits_in_memory(load_card(Path.cwd(), self.dataset))
        except UserError:
            return False

    @property
    def options(self) -> str:
        """The options of `harness data build` for this order, quoted for a shell."""
        options = {field: str(value) for field, value in self._asdict().items() if field != "dataset"}
        return " ".join(f"--{option} {shlex.quote(value)}" for option, value in options.items())

    @property
    def partition_files(self) -> list[str]:
        """The partition file that the user provides, if any. A changed file leads to a new store."""
        if not self.partition.startswith(FILE):
            return []
        folder = os.environ.get("HARNESS_DATASETS", "datasets")
        return [f"{folder}/partitions/{self.partition.removeprefix(FILE)}"]

    # A build by several jobs: all jobs of a step, then all jobs of the next.

    @property
    def steps(self) -> list[str]:
        """The steps of a build that several jobs share. A computed partition comes first, in one job."""
        first = ["order"] if self.partition in COMPUTED and self.partition != "random" else []
        return [*first, "scatter", "settle", "features"]

    def list_step_markers(self, step: str, jobs: int) -> list[str]:
        """Return the markers of all jobs of a step."""
        numbers = range(1 if step == "order" else jobs)
        return [f"{self._shares}/{step}-{number}-of-{jobs}" for number in numbers]

    def list_markers_before(self, step: str, jobs: int) -> list[str]:
        """Return the markers that a job of a step waits for: the markers of the previous step."""
        before = self.steps[: self.steps.index(step)]
        return self.list_step_markers(before[-1], jobs) if before else []

    def list_last_markers(self, jobs: int) -> list[str]:
        """Return the markers that the end of a build waits for; none if one job builds the graph."""
        return self.list_step_markers(self.steps[-1], jobs) if jobs > 1 else []

    def count_past_jobs(self) -> int | None:
        """Return the number of jobs of the finished build; None before the build has finished."""
        if not Path(self.marker).exists():
            return None
        last = sorted(Path(self._shares).glob("features-*"), key=os.path.getmtime)
        return int(last[-1].name.rpartition("-")[2]) if last else 1

    @property
    def _shares(self) -> str:
        return f"{stores_folder()}/.shares/{self.name}"


def find_card(dataset: str) -> str:
    """Return the card of a dataset; for a twin, NAME@SCALE, the card of its graph.

    The card of the project is used unless only the data folder has one.
    """
    card = MARKER / f"{dataset.partition('@')[0]}.yaml"
    imported = find_imported_folder(Path.cwd()) / card.name
    return str(imported if imported.exists() and not card.exists() else card)


def read_expected_nonzeros(dataset: str) -> int | None:
    """Return the nonzeros of the adjacency matrix that a card expects; None if the card does not give them.

    Errors in the card are left to the build, which reports them.
    """
    card, scale = find_card(dataset), dataset.partition("@")[2]
    try:
        expected = read_yaml(Path(card), card, may_be_empty=True).get("expected", {})
        nonzeros = expected.get("nnz_adj") or expected.get("nnz_sym")
        return nonzeros and int(nonzeros * Fraction(scale.replace("-", "/") or 1))
    except (UserError, AttributeError, TypeError, ValueError):
        return None
