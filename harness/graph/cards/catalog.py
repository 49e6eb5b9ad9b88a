"""The cards of all datasets, by name: from the project's catalog, and of imported graphs."""

from pathlib import Path

from harness.base.documents import read_yaml
from harness.base.errors import UserError
from harness.base.validation import unknown_name_error, validate
from harness.graph.cards.dataset_card import DatasetCard
from harness.graph.cards.twin_card import make_twin_card
from harness.spec.root import MARKER, find_imported_folder, list_dataset_cards


def list_cards(root: Path) -> list[str]:
    """Return the names of all datasets."""
    return sorted({path.stem for path in list_dataset_cards(root)})


def is_in_catalog(root: Path, name: str) -> bool:
    """Return True if the project's catalog has the card of a dataset, or of the graph of a twin."""
    return any(path.stem == name.partition("@")[0] for path in (root / MARKER).glob("*.yaml"))


def load_card(root: Path, name: str) -> DatasetCard:
    """Return the card of a dataset, from the project or imported; for NAME@SCALE, the card of a twin."""
    name, at, scale = name.partition("@")
    card = _read_card(root, name)
    return make_twin_card(card, scale) if at else card


def _read_card(root: Path, name: str) -> DatasetCard:
    paths = [path for path in list_dataset_cards(root) if path.stem == name]
    if not paths:
        places = (
            "Import your own: harness data import NAME --edges FILE. "
            f"Cards are in {MARKER}/, and cards of imported graphs in {find_imported_folder(root)}/."
        )
        raise unknown_name_error("dataset", name, list_cards(root), places)
    if len(paths) > 1:
        raise UserError(
            f"two datasets have the name {name}: {' and '.join(map(str, paths))}. Rename or remove one of the files."
        )
    (path,) = paths
    where = str(path.relative_to(root) if path.is_relative_to(root) else path)
    fields = read_yaml(path, where)
    if fields.get("name", name) != name:
        raise UserError(
            f"{where}: name = {fields['name']!r}, but a card is named by its file; leave the key out."
        )
    return validate(DatasetCard, {**fields, "name": name}, where)
