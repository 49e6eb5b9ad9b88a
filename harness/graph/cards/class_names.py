"""The names of classes: for labels that are words, a file beside the card lists the word of each class."""

from pathlib import Path

from harness.base.errors import UserError
from harness.base.files import DATASETS, write_text
from harness.graph.cards.dataset_card import DatasetCard, FileLabels
from harness.spec.root import find_data_folder, find_imported_folder


def get_class_names_file(root: Path, card: DatasetCard) -> Path:
    """Return the file that lists the names of the classes of an imported graph; line 1 is class 0."""
    return find_imported_folder(root) / f"{card.name}.classes.txt"


def list_class_names(root: Path, card: DatasetCard) -> list[str] | None:
    """Return the names of the classes; None if classes are numbers."""
    path = get_class_names_file(root, card)
    if not path.is_file():
        return None
    names = path.read_text(encoding="utf-8").split("\n")[:-1]
    if len(names) > card.classes:
        raise UserError(
            f"{path} lists {len(names):,} classes, but the card has {card.classes:,}. Build the graph again."
        )
    return names


def find_class_names(root: Path, card: DatasetCard) -> list[str] | None:
    """Return the names of the classes from the card's label file; None if classes are numbers."""
    labels = card.labels
    if not isinstance(labels, FileLabels) or labels.path is None or card.task == "multi-label":
        return None
    from harness.graph.sources.label_files import read_class_names

    return read_class_names(find_data_folder(root) / labels.path, named=card.has_vertex_names)


def format_class_names(names: list[str]) -> str:
    """Return the content of the file."""
    return "".join(f"{name}\n" for name in names)


def update_class_names(root: Path, card: DatasetCard) -> None:
    """Write the file anew after a build, because the words of the label file may have changed since the import."""
    path = get_class_names_file(root, card)
    if path.is_file() and (names := find_class_names(root, card)):
        write_text(path, format_class_names(names), DATASETS)
