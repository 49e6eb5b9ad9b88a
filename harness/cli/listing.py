"""harness list: what can be named in a spec."""

import argparse
from pathlib import Path

from harness.cli.options import Verbs, add_verb, columns, show
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
    import yaml

    folders = {"datasets": "datasets/catalog", "machines": "machines", "experiments": "workflows/experiments"}
    paths = sorted((root / folders[kind]).glob("*.yaml"))
    described = (
        (path.stem, (yaml.safe_load(path.read_text()) or {}).get("description", "")) for path in paths
    )
    return [(name, " ".join(str(about).split())) for name, about in described]
