"""The programs whose logs can be recorded, by the name that --format takes, and the settings of a logged run."""

from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple

from harness.errors import UserError
from harness.external.adaqp_log import ADAQP
from harness.external.bns_gcn_log import BNS_GCN
from harness.external.pipegcn_log import PIPEGCN
from harness.external.plexus_log import PLEXUS
from harness.external.program import LoggedRun, Program, ProgramLog
from harness.external.sancus_log import SANCUS

PROGRAMS: Mapping[str, Program] = {
    "bns-gcn": BNS_GCN,
    "pipegcn": PIPEGCN,
    "plexus": PLEXUS,
    "sancus": SANCUS,
    "adaqp": ADAQP,
}


class LogSettings(NamedTuple):
    """The settings of a logged run."""

    keys: dict[str, Any]
    """The values of the known keys of its spec, by dotted key."""
    beyond: dict[str, str]
    """Descriptions of the properties that a spec cannot express, by name."""
    lost: dict[str, str]
    """The keys that have no value because of these properties, each with the name of the property."""


def read_settings(log: ProgramLog, run: LoggedRun, program: Program) -> LogSettings:
    """Return the settings of a logged run. Raise UserError for a value that a spec cannot hold."""
    described = [(each, each.describe(run.options)) for each in program.beyond]
    beyond = {each.name: words for each, words in described if words}
    lost = {each.key: each.name for each, words in described if words and each.key}
    keys = program.map_keys(run.options)
    for key, value in keys.items():
        if isinstance(value, float) and not isfinite(value):
            raise UserError(
                f"{log.where}: the run had {key} = {value}, which a spec cannot hold: it must be a finite number."
            )
    known = {key: value for key, value in keys.items() if key not in lost and key not in run.open_keys}
    return LogSettings(known, beyond, lost)


def suggest_format(log: ProgramLog, program: Program) -> str:
    """Return the advice to read a log as that of another program; empty if no program wrote it."""
    for name, other in PROGRAMS.items():
        if other is not program:
            run = other.read(log)
            if not run.mismatch and (run.reports or run.nodes):
                return f" Read it by --format {name}."
    return ""
