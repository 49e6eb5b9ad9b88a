"""What a log must hold to be read as one run, and what shows that the run broke off."""

from collections import Counter
from math import isfinite

from harness.errors import RunError, UserError
from harness.external.log import Log
from harness.external.programs import KEYS, Program


def check_that_it_reports(log: Log, program: Program) -> None:
    """A program that was run and failed before its first epoch is a result, if it said what it was to do."""
    ran = log.exit_code is not None
    if log.lines or (ran and log.settings):
        return
    ended = f" (exit code {log.exit_code})" if ran else ""
    raise (RunError if ran else UserError)(
        f"{log.where}{ended} has no line of an epoch as {program.title} writes them (Process 000 | Epoch 00009 | "
        "Time(s) ... | Comm(s) ... | Reduce(s) ... | Loss ...). Was it stopped before its first report (--log-every), "
        f"or is it another program's? It ends:\n{log.ending()}"
    )


def check_processes(log: Log, world: int) -> None:
    """All processes, and one report of each after an epoch."""
    there, nodes = set(log.last), log.settings.get("parts_per_node", world) < world
    if there - set(range(world)) or (nodes and len(there) < world):
        raise UserError(
            f"{log.where} has lines of the processes {sorted(there)}, and the run had {world}. A run over several "
            "nodes leaves a log on each: give all of them."
        )
    reports = Counter((line.rank, line.epoch) for line in log.lines)
    if twice := [report for report, times in reports.items() if times > 1]:
        rank, epoch = min(twice)
        raise UserError(
            f"{log.where} has epoch {epoch} of process {rank} more than once, so it holds several runs. Give the log "
            "of one."
        )


def check_that_it_is_one_run(log: Log, program: Program) -> None:
    """Nodes print the same options, but for what a node has of its own."""
    for other in log.each_settings:
        ours = {key: value for key, value in log.settings.items() if key in KEYS and key != "seed"}
        differing = [key for key, value in ours.items() if other.get(key, value) != value]
        if program.mark in other and differing:
            raise UserError(
                f"{log.where} has options of several runs, which differ in {', '.join(differing)}. Give the log of one."
            )


def divergence_of(log: Log) -> str | None:
    """Which process first had a loss that is no number; it never finds back from there."""
    lost = min(
        ((line.epoch, line.rank, line.loss) for line in log.lines if not isfinite(line.loss)), default=None
    )
    return None if lost is None else f"In epoch {lost[0]} the loss of process {lost[1]} was {lost[2]}"


def failure_of(log: Log, world: int, epochs: int | None) -> str | None:
    """Whether training broke off. These programs end with exit code 0 also when one of their processes fails.

    Each process reports every so many epochs, and all come to the same last one; how many epochs there were to be, a
    log without options does not say.
    """
    if log.exit_code:
        return f"It ended with exit code {log.exit_code}"
    if silent := sorted(set(range(world)) - set(log.last)):
        return f"Of its {world} processes {', '.join(map(str, silent))} reported no epoch"
    ends, every = {line.epoch for line in log.last.values()}, log.lines[0].epoch + 1
    if len(ends) > 1 or (epochs is not None and max(ends) + 1 + every <= epochs):
        of = "" if epochs is None else f" of {epochs}"
        return f"Its processes came to epoch {' and '.join(map(str, sorted(ends)))}{of}"
    return None
