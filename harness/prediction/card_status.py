"""What is known about the errors of predictions with a machine card: its sources, and the runs it was held against."""

import re
from typing import Literal, NamedTuple

from harness.base.formatting import format_count
from harness.runtime.provenance import describe_machine
from harness.spec.machine_card import CalibratedMachine, Constant, MachineCard, SpmmTerms

CALIBRATED = re.compile(r"\bharness doctor\b.*?(\d{4}-\d\d-\d\d)")
"""The source of a constant that `harness doctor --calibrate` measured, with the date."""
FITTED = re.compile(r"\bfitted\b")
UNMEASURED = 2.84
"""The further error of a time on a machine of which nothing was measured here, neither constants nor epochs: with it,
nine of ten of the numbers that papers print of such machines, and that are not held out, are within their intervals
(benchmarks/results/trust.md)."""
INTENDED_COVERAGE = 0.8
"""The share of runs that an interval is meant to contain. The factor for the model's own error was chosen so that it
contains 80 % of the epochs that were measured over a network (`harness.prediction.epoch.RESIDUAL`)."""


class CardStatus(NamedTuple):
    """Where the constants of a card come from, and how well its predictions matched runs."""

    kind: Literal["calibrated", "fitted", "typed"]
    """Measured by `harness doctor --calibrate`, fitted to published measurements, or from data sheets and papers."""
    date: str | None
    """The last day on which constants were measured by `harness doctor --calibrate`."""
    spmm_factor: float | None
    """The factor within which the card's terms give the time of a sparse product; None without rates."""
    runs: int
    """The number of epochs that were both predicted with this card and measured."""
    inside: int
    """How many of them were within the interval of their prediction."""
    description: str
    """One sentence about the card."""
    coverage: str
    """One sentence about the interval of a prediction."""
    measured_elsewhere: str | None = None
    """That the constants were measured on another machine than this one, and what to do; None if they were not."""

    @property
    def is_checked(self) -> bool:
        """True if the card was held against runs."""
        return self.runs > 0


def describe_card(card: MachineCard, here: CalibratedMachine | None = None) -> CardStatus:
    """Return the status of a machine card on the machine `here`; by default, this one."""
    elsewhere = describe_other_machine(card, here)
    dates = _list_calibrations(card)
    fitted = next((source for source in _list_sources(card) if FITTED.search(source)), None)
    kind: Literal["calibrated", "fitted", "typed"] = "typed"
    origin = "its constants come from data sheets, papers and assumptions"
    if dates:
        kind, origin = "calibrated", f"it was calibrated on {dates[-1]}"
    elif fitted:
        kind, origin = "fitted", f"its sparse products come from a fit ({fitted.rstrip('.')})"
    intended = f"An interval is meant to contain {_percent(INTENDED_COVERAGE)} of runs"
    if card.checked is None:
        description = f"this card has not been validated against a run; {origin}"
        coverage = f"{intended}; how many it contains on this machine is unknown."
        if (further := find_further_error(card)) > 1:
            coverage += f" It has a further error of a factor of {further:g}, which numbers of papers need."
    else:
        runs, inside = card.checked.runs, card.checked.inside
        error = _percent(card.checked.median_error)
        description = f"{origin} and held against {runs} runs; median error {error}"
        coverage = f"{intended}; with this card it contained {inside} of {runs} ({card.checked.source})."
    if elsewhere:
        description = f"{elsewhere}; {description}"
    return CardStatus(
        kind,
        dates[-1] if dates else None,
        card.rates.spmm.within if card.rates else None,
        card.checked.runs if card.checked else 0,
        card.checked.inside if card.checked else 0,
        description,
        coverage,
        elsewhere,
    )


def find_further_error(card: MachineCard) -> float:
    """Return the factor by which times are uncertain besides the errors of the model and of the constants."""
    return 1.0 if card.checked or _list_calibrations(card) else UNMEASURED


def describe_other_machine(card: MachineCard, here: CalibratedMachine | None = None) -> str | None:
    """Return that a card was calibrated on another machine than `here`, and the command that measures this one.

    Return None for the card of a cluster, which describes compute nodes and is also used elsewhere, and for a card that
    does not name a machine.
    """
    there = card.measured_on
    if there is None or card.slurm is not None:
        return None
    here = here or describe_machine(card.device)
    is_same = there.gpu == here.gpu if there.gpu else (there.cpu, there.cores) == (here.cpu, here.cores)
    if is_same:
        return None
    option = "" if card.name == "local" else f" --machine {card.name}"
    names = f"{_name_machine(there)}; here: {_name_machine(here)}"
    return f"measured on another machine ({names}): run harness doctor --calibrate{option}"


def _name_machine(machine: CalibratedMachine) -> str:
    return machine.gpu or f"{format_count(machine.cores, 'core')} of {machine.cpu}"


def _list_calibrations(card: MachineCard) -> list[str]:
    """Return the days on which `harness doctor --calibrate` measured constants of a card, in order."""
    return sorted(match[1] for source in _list_sources(card) if (match := CALIBRATED.search(source)))


def _list_sources(card: MachineCard) -> list[str]:
    """Return the sources of all constants of a card."""
    sections = [section for section in (card.rates, card.links) if section is not None]
    values = [value for section in sections for _, value in section]
    return [value.source for value in values if isinstance(value, Constant | SpmmTerms)]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
