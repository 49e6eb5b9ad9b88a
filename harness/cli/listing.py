"""harness list: what can be named in a spec."""

import argparse
from pathlib import Path

from harness.cli.request import Verbs, add_verb, columns, show
from harness.documents import read_yaml
from harness.errors import UserError
from harness.spec.root import project_root

KINDS = ("strategies", "datasets", "machines", "experiments")


def add_verbs(verbs: Verbs) -> None:
    parser = add_verb(verbs, "list", _list, "List strategies, datasets, machines or experiments.")
    parser.add_argument("kind", choices=KINDS)


def _list(options: argparse.Namespace) -> int:
    rows = _strategies() if options.kind == "strategies" else _cards(options.kind, project_root(options.root))
    show(options, [{"name": name, "about": about} for name, about in rows], columns(rows))
    return 0


def _strategies() -> list[tuple[str, str]]:
    from harness.registry import registered

    return [(point.name, point.value) for point in registered()]


def _cards(kind: str, root: Path) -> list[tuple[str, str]]:
    folders = {
        "datasets": "datasets/catalog",
        "machines": "config/machines",
        "experiments": "workflows/experiments",
    }
    paths = sorted((root / folders[kind]).glob("*.yaml"))
    return [(path.stem, " ".join(_about(path).split())) for path in paths]


def _about(path: Path) -> str:
    """What a file says of itself; or why it cannot be read, which keeps none of the others from being listed."""
    try:
        return str(read_yaml(path, path.name).get("description", ""))
    except UserError as error:
        return str(error)
