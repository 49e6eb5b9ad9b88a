"""The project root, and its folders for results and data. A project is a checkout, or made by `harness new project`."""

import os
from pathlib import Path

from harness.base.errors import UserError

MARKER = Path("datasets") / "catalog"


def find_root(given: str | None = None) -> Path:
    """Return the root that `--root` or HARNESS_ROOT names, or the nearest parent folder with datasets/catalog."""
    named = given or os.environ.get("HARNESS_ROOT")
    if named:
        root = Path(named).resolve()
        if not (root / MARKER).is_dir():
            raise UserError(
                f"{named} is not a project root: it has no folder {MARKER}. `harness new project FOLDER` makes one."
            )
        return root
    working = Path.cwd()
    for folder in (working, *working.parents):
        if (folder / MARKER).is_dir():
            return folder
    raise UserError(
        f"No project root: neither {working} nor a folder above it holds {MARKER}. "
        "Go to a project, or name one by --root or HARNESS_ROOT; `harness new project FOLDER` makes one."
    )


def find_data_folder(root: Path) -> Path:
    """Return the folder of stores and source files: HARNESS_DATASETS, or datasets/ under the root."""
    return Path(os.environ.get("HARNESS_DATASETS") or root / "datasets")


def find_imported_folder(root: Path) -> Path:
    """Return the folder with the cards of imported graphs, which are kept with the data."""
    return find_data_folder(root) / "imported"


def list_dataset_cards(root: Path) -> list[Path]:
    """Return the cards of all datasets, of the project and imported, sorted by name."""
    folders = (root / MARKER, find_imported_folder(root))
    return sorted((path for folder in folders for path in folder.glob("*.yaml")), key=lambda path: path.stem)


def find_results_folder(root: Path) -> Path:
    """Return the folder of results: HARNESS_RESULTS, or results/ under the root."""
    return Path(os.environ.get("HARNESS_RESULTS") or root / "results")
