"""harness doctor, init, new, words and check: surveys a machine, makes projects and strategies, checks strategies."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.options import (
    ProgressLine,
    Verbs,
    add_verb,
    format_columns,
    print_answer,
    print_progress,
    rank_count,
)
from harness.doctor.survey import survey_machine
from harness.errors import UserError
from harness.spec.root import find_results_folder, find_root
from harness.validation import unknown_name_error

if TYPE_CHECKING:
    pass


def add_verbs(verbs: Verbs) -> None:
    _add_doctor(verbs)
    _add_init(verbs)
    _add_new(verbs)


def _add_init(verbs: Verbs) -> None:
    init = add_verb(
        verbs,
        "init",
        _make_project,
        "Make a project: a folder with dataset cards, machine cards and workflows.",
        "A checkout already is a project. Other verbs run inside a project, or name it by --root.",
    )
    init.add_argument("folder", metavar="FOLDER", help="a folder that is new or empty")


def _add_new(verbs: Verbs) -> None:
    new = add_verb(
        verbs,
        "new",
        _make_package,
        "Make the package of a new strategy: its class, a test, a CI workflow.",
        "The strategy trains on one rank. The messages of `harness check` lead to a complete strategy.",
    )
    new.add_argument("what", choices=["strategy"], help="what to make")
    new.add_argument("name", metavar="NAME", help="the name of the strategy, as in my-strategy")
    new.add_argument(
        "--mini-batch",
        action="store_true",
        help="a strategy that trains on mini-batches instead of the full graph",
    )
    new.add_argument(
        "--into",
        metavar="DIR",
        default=".",
        help="the folder in which the package is made (default: the current folder)",
    )


def _make_project(options: argparse.Namespace) -> int:
    from harness.scaffold.scaffold import write_project

    folder = write_project(Path(options.folder))
    text = [
        *(f"{folder} is a project. For a first run and its figures:", ""),
        *(f"    cd {folder}", "    harness run --strategy cagnet-1d --dataset tiny-sbm --ranks 2"),
        *("    harness collect && harness figures && harness report", ""),
        *("Snakemake, which the extra `slurm` installs, runs whole experiments:", ""),
        "    snakemake all --profile workflows/profiles/local",
    ]
    print_answer(options, {"folder": str(folder)}, "\n".join(text))
    return 0


def _make_package(options: argparse.Namespace) -> int:
    from harness.scaffold.scaffold import choose_names, write_strategy

    names = choose_names(options.name)
    folder = write_strategy(options.name, Path(options.into), mini_batch=options.mini_batch)
    strategy = f"{folder / names.package / 'strategy.py'}:{names.cls}"
    files = sorted(str(path) for path in folder.rglob("*") if path.is_file())
    text = [
        *(f"{len(files)} files in {folder}/. The strategy is {folder / names.package / 'strategy.py'}.", ""),
        *("Follow the messages of this command until the strategy conforms:", ""),
        *(f"    harness check {strategy} --quick --first", ""),
        "docs/tutorials/add-a-strategy.md shows a complete strategy.",
    ]
    print_answer(options, {"folder": str(folder), "strategy": strategy, "files": files}, "\n".join(text))
    return 0


# The machine.


def _add_doctor(verbs: Verbs) -> None:
    doctor = add_verb(
        verbs,
        "doctor",
        _survey_machine,
        "Check this machine: what it can run, and what is missing.",
        "Prints a line for each item; the exit code is 1 if one is missing. With --links, measures the bandwidth and "
        "the latency between ranks instead, which takes about 30 seconds. With --calibrate, measures links and "
        "kernels, which takes about a minute on an idle machine, and writes them to the machine card for predictions. "
        "For GPUs, name a card whose device is a GPU, such as --machine local-gpu.",
    )
    doctor.add_argument(
        "--calibrate",
        action="store_true",
        help="measure kernels and links, and write them to the machine card",
    )
    doctor.add_argument(
        "--links",
        action="store_true",
        help="measure all-reduces between ranks, on this machine or in this Slurm job",
    )
    doctor.add_argument(
        "--ranks",
        type=rank_count,
        metavar="P",
        help="with --links or --calibrate: the number of ranks (default 2; 1 to calibrate a machine with a single GPU)",
    )
    doctor.add_argument(
        "--machine",
        metavar="NAME",
        help="with --links or --calibrate: the machine card (default: the card named in config/site.yaml, or local)",
    )
    doctor.add_argument(
        "--write",
        metavar="NAME",
        help="with --links or --calibrate: write a new card with the measured values, config/machines/NAME.yaml",
    )


def _survey_machine(options: argparse.Namespace) -> int:
    if options.calibrate:
        return _calibrate_card(options)
    if options.links:
        return _measure_links(options)
    if options.write is not None or options.machine is not None:
        raise UserError("doctor takes --machine and --write together with --links or --calibrate.")
    items = list(survey_machine(options.root, print_progress))
    states = ["MISSING" if item.missing else "CHECK" if item.doubtful else "ok" for item in items]
    rows = [(state, item.what, item.found) for state, item in zip(states, items, strict=True)]
    print_answer(options, [asdict(item) for item in items], format_columns(rows))
    return 1 if any(item.missing for item in items) else 0


def _measure_links(options: argparse.Namespace) -> int:
    from harness.doctor.links import make_card_path, measure_links, write_card
    from harness.slurm.resources import load_site

    root = find_root(options.root)
    name = options.machine or load_site(root).machine or "local"
    if options.write is not None:
        make_card_path(root, options.write)  # raises UserError before anything is measured
    measured = measure_links(root, name, options.ranks or 2, print_progress)
    rows = [("distance", "size", "GB/s")]
    rows += [(str(row.before), str(row.size), f"{row.gbs:.3g}") for row in measured.rows]
    text = f"{format_columns(rows)}\nlatency {measured.latency_us:.1f} us"
    text += f"\nnetwork {measured.network}" if measured.network else ""
    if options.write is not None:
        text += f"\n{write_card(root, name, options.write, measured)}"
    print_answer(options, measured._asdict() | {"rows": [row.model_dump() for row in measured.rows]}, text)
    return 0


def _calibrate_card(options: argparse.Namespace) -> int:
    import yaml

    from harness.doctor.calibrate import calibrate_machine, default_rank_count, write_new_card, write_sections
    from harness.doctor.links import make_card_path
    from harness.files import write_text
    from harness.slurm.resources import load_site
    from harness.spec.machine_card import list_machines

    root = find_root(options.root)
    name = options.machine or load_site(root).machine or "local"
    if name not in list_machines(root):
        new = (
            f"To make a new card of that name: harness doctor --calibrate --machine local-gpu --write {name}"
        )
        raise unknown_name_error("machine", name, list_machines(root), new)
    if options.write is not None:
        make_card_path(root, options.write)  # raises UserError before anything is measured
    with ProgressLine() as on_step:
        done = calibrate_machine(
            root, name, options.ranks or default_rank_count(root, name), print_progress, on_step
        )
    table = find_results_folder(root) / "calibrations" / f"{options.write or name}.csv"
    table.parent.mkdir(parents=True, exist_ok=True)
    write_text(table, done.table)
    if options.write is None:
        path = write_sections(root, name, done.sections)
    else:
        path = write_new_card(root, name, options.write, done)
    text = [yaml.safe_dump(done.sections, sort_keys=False, width=120), *done.notes]
    print_answer(
        options,
        {**done.sections, "notes": done.notes},
        "\n".join([*text, f"written to {path}, all times to {table}"]),
    )
    return 0
