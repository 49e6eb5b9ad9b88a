"""What the workflow prints and shows when it ends, and the command `harness` for its jobs."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.locks import RUNNING, hold_shared, is_shared_by_others


def add_harness_to_path() -> None:
    """Add the folder of this Python to the PATH: `harness` is there, even if its environment is not active."""
    os.environ["PATH"] = os.pathsep.join([*os.get_exec_path(), str(Path(sys.executable).parent)])


def read_captions(folder: str) -> dict[str, str]:
    """Return the captions of the figures in a folder, by the name of the figure: empty before they are drawn.

    `harness figures` writes a caption below each figure. Its last paragraph, which names datasets, is left out: the
    caption is reStructuredText, and the names are not.
    """
    files = sorted(Path(folder).glob("*.txt"))
    return {file.stem: file.read_text(encoding="utf-8").rpartition("\n\n")[0] for file in files}


def list_main_figures(folder: str) -> list[str]:
    """Return the pictures of all datasets together: received.svg, but not the received-DATASET.svg next to it."""
    names = {path.stem: str(path) for path in sorted(Path(folder).glob("*.svg"))}
    return [path for name, path in names.items() if not any(name.startswith(f"{other}-") for other in names)]


def check_before_planning(workflow: Any, check: Callable[[Collection[str], Collection[str]], None]) -> None:
    """Make Snakemake call `check` with the requested targets and the names of all target rules before it plans jobs.

    A refusal ends it with a message alone. Otherwise Snakemake would not name the known targets, and would print the
    refusal of a target with the frames of its input function.
    """
    plan_jobs = workflow._build_dag

    def check_and_plan() -> None:
        try:
            check(
                workflow.dag_settings.targets,
                [rule.name for rule in workflow.rules if not rule.has_wildcards()],
            )
        except UserError as error:
            sys.exit(f"harness: {error}")
        plan_jobs()

    workflow._build_dag = check_and_plan


def check_before_unlocking(workflow: Any) -> None:
    """Make Snakemake refuse to unlock a folder in which a workflow runs, or a job that a killed workflow began.

    Each of them holds a shared lock, which the system releases when it ends in any way.
    """
    file, unlock = hold_shared(RUNNING), workflow.unlock

    def check_and_unlock() -> None:
        if is_shared_by_others(file):
            sys.exit(
                "harness: a workflow is running in this folder, or a job that it began. Wait for it or stop it, then "
                "try again."
            )
        unlock()

    workflow.unlock = check_and_unlock


def print_results(paths: Iterable[str]) -> None:
    """Print the paths of the figures and reports that exist."""
    existing = [path for path in paths if Path(path).is_file()]
    if existing:
        print("\nFigures and report:", *existing, sep="\n  ", file=sys.stderr)


def print_first_failure(snakemake_logs: Iterable[str]) -> None:
    """Print the log of the first failed job: later failures often follow from the first."""
    text = "".join(Path(log).read_text(encoding="utf-8") for log in snakemake_logs)
    failed = re.search(r"log: (\S+) \(check log file", text)
    if failed:
        print(f"\nFirst failure: {failed[1]}", file=sys.stderr)


def quote_option(option: str, values: Sequence[str]) -> str:
    """Return an option with its values, quoted for a shell, or an empty string if there are no values."""
    return shlex.join([option, *values]) if values else ""
