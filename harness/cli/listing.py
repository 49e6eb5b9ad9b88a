"""harness list and harness doctor: the names that a spec can use, and the state of this machine."""

import argparse
from dataclasses import asdict
from pathlib import Path

from harness.cli.options import Verbs, add_verb, columns, ranks, say, show
from harness.doctor.survey import survey
from harness.documents import read_yaml
from harness.errors import UserError
from harness.spec.root import project_root

CARDS = {
    "datasets": "datasets/catalog",
    "machines": "config/machines",
    "experiments": "workflows/experiments",
}
KINDS = ("strategies", "models", *CARDS, "figures")


def add_verbs(verbs: Verbs) -> None:
    doctor = add_verb(
        verbs,
        "doctor",
        _doctor,
        "Check this machine: what it can run, and what is missing.",
        "Prints a line for each item; the exit code is 1 if one is missing. With --links, measures the bandwidth and "
        "the latency between ranks instead, for about 30 seconds. With --calibrate, measures links and kernels, about "
        "a minute on a quiet machine, and writes them into the card as the rates and links of predictions.",
    )
    doctor.add_argument(
        "--calibrate",
        action="store_true",
        help="measure kernels and links, and write them into the machine card",
    )
    doctor.add_argument(
        "--links", action="store_true", help="measure all-reduces between ranks, here or in this Slurm job"
    )
    doctor.add_argument(
        "--ranks",
        type=ranks,
        default=2,
        metavar="P",
        help="links and calibrate: the number of ranks (default 2)",
    )
    doctor.add_argument(
        "--machine",
        metavar="NAME",
        help="links and calibrate: the machine card (default: that of config/site.yaml, or local)",
    )
    doctor.add_argument(
        "--write",
        metavar="NAME",
        help="links: write the measured links to a new card, config/machines/NAME.yaml",
    )
    listing = add_verb(
        verbs,
        "list",
        _list,
        "List the strategies, datasets, machines or experiments, one on a line; or the figures of the papers.",
        "`models` lists what each strategy trains. A figure of a paper has the experiment that reproduces it, or the "
        "reason why there is none.",
    )
    listing.add_argument("kind", choices=KINDS, help="the names to list")


def _doctor(options: argparse.Namespace) -> int:
    if options.calibrate:
        return _calibrate(options)
    if options.links:
        return _links(options)
    if options.write is not None or options.machine is not None:
        raise UserError("doctor takes --machine and --write together with --links or --calibrate.")
    items = list(survey(options.root))
    rows = [("MISSING" if item.missing else "ok", item.what, item.found) for item in items]
    show(options, [asdict(item) for item in items], columns(rows))
    return 1 if any(item.missing for item in items) else 0


def _links(options: argparse.Namespace) -> int:
    from harness.doctor.links import measure, new_card, write_card
    from harness.slurm.site import load_site

    root = project_root(options.root)
    name = options.machine or load_site(root).machine or "local"
    if options.write is not None:
        new_card(root, options.write)  # refused, if it is, before anything is measured
    measured = measure(root, name, options.ranks, say)
    rows = [("ranks apart", "size", "GB/s")]
    rows += [(str(row.before), str(row.size), f"{row.gbs:.3g}") for row in measured.rows]
    text = f"{columns(rows)}\nlatency {measured.latency_us:.1f} us"
    if options.write is not None:
        text += f"\n{write_card(root, name, options.write, measured)}"
    show(options, measured._asdict() | {"rows": [row.model_dump() for row in measured.rows]}, text)
    return 0


def _calibrate(options: argparse.Namespace) -> int:
    import yaml

    from harness.doctor.calibrate import calibrated, write_sections
    from harness.slurm.site import load_site

    root = project_root(options.root)
    name = options.machine or load_site(root).machine or "local"
    sections = calibrated(root, name, options.ranks, say)
    path = write_sections(root, name, sections)
    show(options, sections, f"{yaml.safe_dump(sections, sort_keys=False, width=120)}\nwritten to {path}")
    return 0


def _list(options: argparse.Namespace) -> int:
    if options.kind == "figures":
        return _figures(options)
    if options.kind == "models":
        return _models(options)
    rows = _strategies() if options.kind == "strategies" else _cards(options.kind, project_root(options.root))
    show(options, [{"name": name, "about": about} for name, about in rows], columns(rows))
    return 0


def _figures(options: argparse.Namespace) -> int:
    from harness.experiment.paper_figures import paper_figures

    figures = paper_figures(project_root(options.root))
    rows = [(each.id, f"{each.paper}, {each.number}", each.title, each.way) for each in figures]
    show(options, [each.model_dump() for each in figures], columns(rows))
    return 0


def _models(options: argparse.Namespace) -> int:
    from harness.experiment.trained_models import as_cells, trained_models

    rows = trained_models(project_root(options.root))
    missing = [f"{row.strategy}: {row.missing}" for row in rows if row.missing]
    page = "\n\n".join([columns(as_cells(rows)), *missing])
    show(options, [{**row.as_row(), "missing": row.missing} for row in rows], page)
    return 0


def _strategies() -> list[tuple[str, str]]:
    from harness.registry import registered

    return [(point.name, point.value) for point in registered()]


def _cards(kind: str, root: Path) -> list[tuple[str, str]]:
    paths = sorted((root / CARDS[kind]).glob("*.yaml"))
    return [(path.stem, " ".join(_about(path).split())) for path in paths]


def _about(path: Path) -> str:
    """The description in a file; or the reason why the file cannot be read, so that the others are still listed."""
    try:
        return str(read_yaml(path, path.name).get("description", ""))
    except UserError as error:
        return str(error)
