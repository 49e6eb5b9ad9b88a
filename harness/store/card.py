"""The card of a dataset: one YAML file that says where a graph comes from and what training reads of it.

A card is datasets/catalog/NAME.yaml; the name of the file is the name of the dataset. This module only reads
cards, so that listing datasets needs neither numpy nor torch.
"""

from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, model_validator

from harness.errors import UserError
from harness.store.recipes import Features, Labels, Sbm, Source, Split
from harness.validation import Frozen, unknown, validated

CATALOG = Path("datasets") / "catalog"


class Expected(Frozen):
    """Counts that the graph must have; the ones that are given are checked."""

    n: int | None = None
    stored: int | None = None
    loops: int | None = None
    duplicates: int | None = None
    nnz_sym: int | None = None
    nnz_adj: int | None = None


class DatasetCard(Frozen):
    """Everything that defines a dataset, up to the order of its vertices."""

    name: str
    description: str = ""
    source: Annotated[Source, Field(discriminator="kind")]
    directed: bool = False
    classes: int = Field(ge=1)
    features: Annotated[Features, Field(discriminator="kind")]
    labels: Annotated[Labels, Field(discriminator="kind")]
    split: Annotated[Split, Field(discriminator="kind")]
    seed: int = Field(0, ge=0)
    """Of everything that is drawn: edges, features, labels, split."""
    expected: Expected = Expected()

    @model_validator(mode="after")
    def _labels_have_a_planter(self) -> "DatasetCard":
        if self.labels.kind == "planted" and not isinstance(self.source, Sbm):
            raise ValueError(
                f"labels are planted by the source sbm only, not by {self.source.kind}; use degree, uniform or file"
            )
        return self

    @model_validator(mode="after")
    def _sbm_fits_its_classes(self) -> "DatasetCard":
        if isinstance(self.source, Sbm) and self.source.n < 2 * self.classes:
            raise ValueError(
                f"sbm needs two vertices in each class, and {self.source.n} vertices cannot give that to {self.classes}"
            )
        if isinstance(self.source, Sbm) and self.classes == 1 and self.source.homophily < 1:
            raise ValueError("sbm with one class has no edges between classes; set homophily to 1")
        return self

    def content(self) -> dict[str, Any]:
        """What the data depends on: the card without its prose and its checks."""
        return self.model_dump(mode="json", exclude={"description", "expected"})


def list_cards(root: Path) -> list[str]:
    """The names of all datasets."""
    return sorted(path.stem for path in (root / CATALOG).glob("*.yaml"))


def load_card(root: Path, name: str) -> DatasetCard:
    """The card datasets/catalog/NAME.yaml under the project root."""
    if name not in list_cards(root):
        raise unknown("dataset", name, list_cards(root), f"Cards live in {CATALOG}/.")
    where = str(CATALOG / f"{name}.yaml")
    try:
        fields = yaml.safe_load((root / where).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{where} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(fields, dict):
        raise UserError(
            f"{where} is not a card: it must be a mapping with the keys of the other cards there."
        )
    if fields.get("name", name) != name:
        raise UserError(
            f"{where}: name = {fields['name']!r}, but a card is named by its file; leave the key out."
        )
    return validated(DatasetCard, {**fields, "name": name}, where)
