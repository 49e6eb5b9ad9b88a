"""harness check: checks a strategy against serial training and against its own formulas."""

import shlex
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, fields
from dataclasses import dataclass as plain_dataclass
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any

from pydantic.dataclasses import dataclass

from harness.base.errors import UserError
from harness.base.files import check_replaceable, write_text
from harness.base.formatting import format_count
from harness.cli.commands.answer import Answer
from harness.cli.commands.listing import ListAnswer
from harness.cli.commands.output import Block, Command, FactList, Headline, Raw, Table, TableColumn, View
from harness.cli.commands.request import CONFIG, File, MachineName, OptionStyle, Request
from harness.cli.commands.verb import Reporter, verb
from harness.registry import hash_strategy_code, load_strategy
from harness.results.check_certificate import Extent, make_certificate, read_certificate

if TYPE_CHECKING:
    from harness.conformance import Finding
    from harness.runtime.launch.time_limits import StartLimits


@dataclass(frozen=True, config=CONFIG)
class CheckRequest(Request):
    """The strategy to check, and how many cases to try."""

    strategy: Annotated[str, OptionStyle(metavar="STRATEGY", is_positional=True, completes="strategies")]
    """A name of `harness list strategies`, or path/to/file.py:Class."""
    extent: Extent = "usual"
    """How many cases are tried. A quick check tries few grids, and combines settings; a full check tries every grid of
    up to 16 ranks."""
    _: KW_ONLY
    quick: bool = False
    """The same as --extent quick."""
    full: bool = False
    """The same as --extent full."""
    list_only: Annotated[bool, OptionStyle(name="--list")] = False
    """List the cases without training."""
    first: bool = False
    """Stop after the first case that fails a check."""
    case: Annotated[str | None, OptionStyle(metavar="NAME")] = None
    """Only the case of this name, or the cases whose names contain it. A failed check names its case."""
    machine: MachineName | None = None
    """The machine card. With local-gpu each rank has its own GPU, and no case has more ranks than there are GPUs
    (default: ranks on the cores of this machine)."""

    certificate: File = None
    """Write a certificate to this file if every check passes, for `harness pack`. It is of all cases, so --case and
    --machine are refused."""

    def choose_extent(self) -> Extent:
        """Return the extent that the options choose. Raises UserError if they choose several."""
        shorthands: dict[Extent, bool] = {"quick": self.quick, "full": self.full, self.extent: True}
        chosen = [extent for extent, is_chosen in shorthands.items() if is_chosen and extent != "usual"]
        if len(chosen) > 1:
            raise UserError("check takes one of --quick, --full and --extent.")
        return next(iter(chosen), "usual")


@plain_dataclass(frozen=True)
class CheckAnswer(Answer):
    """The findings: one for each check on each case."""

    strategy: str
    extent: Extent
    findings: Sequence["Finding"]
    seconds: float
    request: CheckRequest
    uncertified: str = ""
    """Why no certificate was written although one was asked for."""

    @property
    def conforms(self) -> bool:
        """Whether every check passes on every case."""
        return all(finding.holds for finding in self.findings)

    @property
    def broken(self) -> list["Finding"]:
        """The findings of failed checks, in the order in which they were found."""
        return [finding for finding in self.findings if not finding.holds]

    @property
    def exit_code(self) -> int:
        return 0 if self.conforms else 1

    def to_document(self) -> Any:
        return {
            "strategy": self.strategy,
            "conforms": self.conforms,
            "extent": self.extent,
            "seconds": self.seconds,
            "certificate": str(self.request.certificate)
            if self.request.certificate and not self.uncertified
            else None,
            "findings": [_make_document(finding) for finding in self._sort_findings()],
        }

    def to_frame(self) -> Any:
        import pandas as pd

        kept = ("check", "case", "holds", "detail", "worst", "allowed", "unit", "look")
        return pd.DataFrame([{key: getattr(each, key) for key in kept} for each in self._sort_findings()])

    def _sort_findings(self) -> list["Finding"]:
        """Return the findings, failed checks first."""
        return sorted(self.findings, key=lambda finding: finding.holds)

    def lay_out(self, view: View) -> Iterator[Block]:
        yield Headline(self._format_verdict())
        yield from self._lay_out_broken_checks(view)
        yield Table(CHECK_COLUMNS, summarize_checks(self.findings))
        if view.verbose:
            yield Table(CASE_COLUMNS, list(_list_cases(self.findings)), title="Cases")
        if self.request.certificate:
            yield self.uncertified or f"Wrote the certificate to {self.request.certificate}."
        if self.conforms:
            yield from self._lay_out_larger_checks()

    def _format_verdict(self) -> str:
        checks, took = format_count(len(self.findings), "check"), f"in {self.seconds:.0f} s"
        if self.conforms:
            return f"PASS {self.strategy}: {checks} {took}"
        first = self.broken[0].check
        return f"FAIL {self.strategy}: {len(self.broken)} of {checks} failed {took}; begin with {first!r}"

    def _lay_out_broken_checks(self, view: View) -> Iterator[Block]:
        """Yield the first case that breaks each check: the case, the place, both values, where to look, the command."""
        seen = set[str]()
        for finding in self.broken:
            if finding.check not in seen:
                seen.add(finding.check)
                yield from _lay_out_broken_check(finding, view)
                trace = " (-v prints the whole traceback)" if finding.trace and not view.verbose else ""
                yield f"This command tries the case again{trace}:"
                yield Command(self._format_command(self.extent, "--case", finding.case))
                others = [each for each in self.broken if each.check == finding.check][1:]
                if others:
                    yield f"{format_count(len(others), 'other case fails', 'other cases fail')} this check (-v)."

    def _lay_out_larger_checks(self) -> Iterator[Block]:
        from harness.conformance import LARGER

        larger = LARGER[self.extent] if not self.request.case else {}
        if larger:
            yield f"Not tried here: {'; '.join(larger.values())} (--full)."
            yield from (Command(self._format_command(extent)) for extent in larger)

    def _format_command(self, extent: Extent, *options: str) -> str:
        """Return the command of this check with another extent, and with further options."""
        shorthand = [f"--{extent}"] if extent != "usual" else []
        machine = ["--machine", self.request.machine] if self.request.machine else []
        return shlex.join(["harness", "check", self.strategy, *shorthand, *options, *machine])


CASE_MODULES = ("harness.conformance.case", "torch.fx.experimental.symbolic_shapes")
"""The modules that ranks need for the cases of a check. The second is imported by torch where layers are recomputed."""
CHECK_COLUMNS = (
    TableColumn("check", "check"),
    TableColumn("result", "result"),
    TableColumn("cases", "cases", "whole"),
    TableColumn("worst", "worst", "number"),
    TableColumn("allowed", "allowed", "number"),
)
LISTED_COLUMNS = (
    TableColumn("case", "case", may_wrap=True),
    TableColumn("settings", "settings", may_wrap=True),
)
CASE_COLUMNS = (
    TableColumn("case", "case", may_wrap=True),
    TableColumn("check", "check"),
    TableColumn("result", "result"),
    TableColumn("found", "found", may_wrap=True),
)


def summarize_checks(findings: Sequence["Finding"]) -> list[dict[str, Any]]:
    """Return a row for each check, failed checks first: its cases, and its largest difference if it allows one."""
    checks: dict[str, list[Finding]] = {}
    for finding in findings:
        checks.setdefault(finding.check, []).append(finding)
    rows = [_summarize_check(check, found) for check, found in checks.items()]
    if all(row["result"] == "PASS" for row in rows):
        rows = [{**row, "result": None} for row in rows]
    return sorted(rows, key=lambda row: row["result"] != "FAIL")


def _summarize_check(check: str, findings: Sequence["Finding"]) -> dict[str, Any]:
    passed = sum(finding.holds for finding in findings)
    measured = [finding for finding in findings if finding.worst is not None]
    # A difference that is not finite is larger than every other one.
    worst = max(measured, key=_get_difference, default=None)
    return {
        "check": check,
        "result": "PASS" if passed == len(findings) else "FAIL",
        "cases": f"{passed}" if passed == len(findings) else f"{passed} of {len(findings)}",
        "worst": worst and _format_difference(worst.worst, worst.unit),
        "allowed": worst and _format_difference(worst.allowed, worst.unit),
    }


def _get_difference(finding: "Finding") -> float:
    assert finding.worst is not None
    return finding.worst if isfinite(finding.worst) else float("inf")


def _format_difference(difference: float | None, unit: str) -> str | None:
    """Format a relative difference as 3e-16, and a difference in units as 2.9 deviations."""
    if difference is None:
        return None
    return f"{difference:.1f} {unit}" if unit else f"{difference:.0e}"


def _list_cases(findings: Sequence["Finding"]) -> Iterator[dict[str, Any]]:
    """Yield a row for each finding. The first row of each case names it."""
    case = None
    for finding in findings:
        yield {
            "case": finding.case if finding.case != case else None,
            "check": finding.check,
            "result": "PASS" if finding.holds else "FAIL",
            "found": finding.detail,
        }
        case = finding.case


def _lay_out_broken_check(finding: "Finding", view: View) -> Iterator[Block]:
    pairs = [("case", finding.case), ("which is", finding.setting)]
    for wrong in finding.wrong[:2]:
        pairs += [("at", wrong.place), *zip(wrong.sides, wrong.values, strict=True)]
        if wrong.parts:
            pairs.append(("holds", wrong.parts))
    if len(finding.wrong) > 2:
        pairs.append(("and", f"{len(finding.wrong) - 2} more places; --json lists them"))
    yield FactList([*pairs, ("look at", finding.look)], f"Failed: {finding.check}")
    if finding.trace and view.verbose:
        yield Raw(textwrap.indent(finding.trace, "  "))


def _make_document(finding: "Finding") -> dict[str, Any]:
    """Return a finding as JSON data."""
    document = {field.name: getattr(finding, field.name) for field in fields(finding)}
    worst = finding.worst if finding.worst is None or isfinite(finding.worst) else None
    return {**document, "wrong": [wrong._asdict() for wrong in finding.wrong], "worst": worst}


def _list_only(request: CheckRequest) -> ListAnswer:
    """List the cases of a check, and say which settings meet in them."""
    from harness.conformance import find_cases, select_cases

    extent, name = request.choose_extent(), request.strategy
    cases, impossible, covering = select_cases(find_cases(name, extent), request.case)
    rows = [
        {"case": case.name, "settings": "must be refused" if case in impossible else case.settings}
        for case in (*cases, *impossible)
    ]
    met = (
        f"Every two settings that it accepts meet in a combination: {covering.pairs:,} pairs in "
        f"{format_count(len(covering.combinations), 'case')}. It refuses {covering.refused:,} pairs."
    )
    title = f"{format_count(len(rows), 'case')} of {name} ({extent})"
    return ListAnswer(title, LISTED_COLUMNS, rows, rows, [met])


@verb(CheckRequest)
def check(request: CheckRequest, reporter: Reporter) -> CheckAnswer | ListAnswer:
    """Check a strategy: results equal to serial training, elements equal to its formula, invalid grids refused.

    Trains on small graphs and several grids. A failed check says what was expected, what came out, and where to look.
    The exit code is 1 if a check fails.
    """
    if request.list_only:
        return _list_only(request)
    if request.certificate:
        check_replaceable(request.certificate, read_certificate, "a certificate")
    code = _hash_code_to_prove(request) if request.certificate else ""
    from harness.comm.engine import Engine, max_ranks
    from harness.runtime.launch.worker_pool import Pool
    from harness.spec.machine_card import Machine, load_machine

    started, findings, extent = time.monotonic(), list["Finding"](), request.choose_extent()
    machine = load_machine(request.home, request.machine) if request.machine else Machine(name="check")
    engine = Engine(machine.engine)
    limits = _load_start_limits(request, reporter)
    with Pool(start_limits=limits, engine=engine, modules=CASE_MODULES) as pool:
        from harness.conformance import check as run_checks  # while the fork server of the ranks imports

        most = max_ranks(engine)
        for finding in run_checks(
            request.strategy, pool.run, extent, machine, most, reporter.step, only=request.case
        ):
            is_next_case = findings and findings[-1].case != finding.case
            if request.first and is_next_case and not all(each.holds for each in findings):
                break
            findings.append(finding)
    uncertified = _write_certificate(request, code, findings) if request.certificate else ""
    return CheckAnswer(request.strategy, extent, findings, time.monotonic() - started, request, uncertified)


def _hash_code_to_prove(request: CheckRequest) -> str:
    """Return the hash of the strategy's code. Raises UserError if the check cannot be proved."""
    if request.case or request.machine:
        option = "--case" if request.case else "--machine"
        raise UserError(
            f"--certificate is for a check of all cases on this machine's cores. Leave {option} out."
        )
    code = hash_strategy_code(request.strategy)
    if not code:
        raise UserError(
            f"The Python files of {request.strategy} cannot be read, so no certificate can name them."
        )
    return code


def _write_certificate(request: CheckRequest, code: str, findings: Sequence["Finding"]) -> str:
    """Write the certificate of a check, or return why it was not written."""
    assert request.certificate
    if not all(finding.holds for finding in findings):
        return "No certificate was written, because a check fails."
    if hash_strategy_code(request.strategy) != code:
        return "No certificate was written, because the files of the strategy changed during the check. Check it again."
    checks = [each.check for each in findings]
    promise = load_strategy(request.strategy).promise.value
    certificate = make_certificate(request.strategy, promise, code, request.choose_extent(), checks)
    write_text(request.certificate, certificate.to_json())
    return ""


def _load_start_limits(request: CheckRequest, reporter: Reporter) -> "StartLimits":
    """Return the time limits of a start from the card `local`, or the defaults outside a project."""
    from harness.runtime.launch.rank_starter import load_start_limits
    from harness.runtime.launch.time_limits import START_LIMITS

    try:
        limits = load_start_limits(request.home, "local")
    except UserError:
        limits = START_LIMITS
    return limits._replace(progress=reporter.log)
