"""The catalog: the cards of all datasets, by name."""

from pathlib import Path

from harness.documents import read_yaml
from harness.errors import UserError
from harness.store.card import DatasetCard
from harness.store.twin import twin_of
from harness.validation import unknown, validated

CATALOG = Path("datasets") / "catalog"


def list_cards(root: Path) -> list[str]:
    """The names of all datasets."""
    return sorted(path.stem for path in (root / CATALOG).glob("*.yaml"))


def load_card(root: Path, name: str) -> DatasetCard:
    """The card datasets/catalog/NAME.yaml under the project root; of NAME@SCALE, that of a twin."""
    name, at, scale = name.partition("@")
    card = _read(root, name)
    return twin_of(card, scale) if at else card


def _read(root: Path, name: str) -> DatasetCard:
    if name not in list_cards(root):
        raise unknown("dataset", name, list_cards(root), f"Cards live in {CATALOG}/.")
    where = str(CATALOG / f"{name}.yaml")
    fields = read_yaml(root / where, where)
    if fields.get("name", name) != name:
        raise UserError(
            f"{where}: name = {fields['name']!r}, but a card is named by its file; leave the key out."
        )
    return validated(DatasetCard, {**fields, "name": name}, where)
