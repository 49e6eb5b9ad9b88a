"""The project root, and its folders of results and data. A project is a checkout, or made by `harness init FOLDER`."""

import os
from pathlib import Path

from harness.errors import UserError

MARKER = Path("datasets") / "catalog"


def project_root(given: str | None = None) -> Path:
    """`--root`, else HARNESS_ROOT, else the nearest folder upwards that holds datasets/catalog."""
    named = given or os.environ.get("HARNESS_ROOT")
    if named:
        root = Path(named).resolve()
        if not (root / MARKER).is_dir():
            raise UserError(
                f"{named} is not a project root: it has no folder {MARKER}. `harness init FOLDER` makes a project."
            )
        return root
    working = Path.cwd()
    for folder in (working, *working.parents):
        if (folder / MARKER).is_dir():
            return folder
    raise UserError(
        f"No project root: neither {working} nor a folder above it holds {MARKER}. "
        "Go to a project, or name one by --root or HARNESS_ROOT; `harness init FOLDER` makes one."
    )


def data_folder(root: Path) -> Path:
    """The folder of stores and source files: HARNESS_DATASETS, or datasets/ under the root."""
    return Path(os.environ.get("HARNESS_DATASETS") or root / "datasets")


def imported_folder(root: Path) -> Path:
    """The folder of the cards of imported graphs, which are kept with the data."""
    return data_folder(root) / "imported"


def dataset_cards(root: Path) -> list[Path]:
    """The cards of all datasets, sorted by name: those of the project, and those of imported graphs."""
    folders = (root / MARKER, imported_folder(root))
    return sorted((path for folder in folders for path in folder.glob("*.yaml")), key=lambda path: path.stem)


def results_folder(root: Path) -> Path:
    """HARNESS_RESULTS, else results/ under the root."""
    return Path(os.environ.get("HARNESS_RESULTS") or root / "results")
