"""harness doctor: what this machine can run, and what is missing; with --links, how fast ranks speak to each other."""

import argparse
from dataclasses import asdict

from harness.cli.request import Verbs, add_verb, columns, ranks, say, show
from harness.doctor.machine import Examined, machine, places, software
from harness.doctor.slurm import slurm
from harness.errors import UserError
from harness.spec.root import project_root


def add_verbs(verbs: Verbs) -> None:
    parser = add_verb(verbs, "doctor", _doctor, "Say what this machine can run, and what is missing.")
    parser.add_argument(
        "--links", action="store_true", help="measure all-reduces between ranks, here or in this job"
    )
    parser.add_argument("--ranks", type=ranks, default=2, help="links: how many (default 2)")
    parser.add_argument(
        "--machine", metavar="NAME", help="links: the card (default: config/site.yaml's, or local)"
    )
    parser.add_argument(
        "--write", metavar="NAME", help="links: a new card config/machines/NAME.yaml with what was measured"
    )


def _doctor(options: argparse.Namespace) -> int:
    if options.links:
        return _links(options)
    if options.write or options.machine:
        raise UserError("doctor takes --machine and --write together with --links.")
    examined: list[Examined] = [*software(), *machine(), *places(options.root), *slurm(options.root)]
    rows = [("MISSING" if one.missing else "ok", one.what, one.found) for one in examined]
    show(options, [asdict(one) for one in examined], columns(rows))
    return 1 if any(one.missing for one in examined) else 0


def _links(options: argparse.Namespace) -> int:
    from harness.doctor.card import measure, write_card
    from harness.slurm.site import load_site

    root = project_root(options.root)
    name = options.machine or load_site(root).machine or "local"
    measured = measure(root, name, options.ranks, say)
    rows = [("ranks apart", "size", "GB/s")]
    rows += [(str(row.before), str(row.size), f"{row.gbs:.3g}") for row in measured.rows]
    text = f"{columns(rows)}\nlatency {measured.latency_us:.1f} us"
    if options.write:
        text += f"\n{write_card(root, name, options.write, measured)}"
    show(options, measured._asdict() | {"rows": [row.model_dump() for row in measured.rows]}, text)
    return 0
