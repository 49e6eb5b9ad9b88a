"""harness compare: compares two runs, the same runs of two commits, or the competitors within blocks."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass

from harness.base.errors import UserError
from harness.base.formatting import format_count, format_seconds, format_si
from harness.cli.commands.answer import Answer
from harness.cli.commands.output import MOST_ROWS, Block, FactList, Headline, Table, TableColumn, View
from harness.cli.commands.request import CONFIG, OptionStyle, Request
from harness.cli.commands.verb import Reporter, verb

if TYPE_CHECKING:
    from harness.results.launch_intervals import Interval
    from harness.results.statistics import CompetitorPair, Difference, Side


def _take_path(value: Any) -> Any:
    return value if value is None else str(value)


SideName = Annotated[str, BeforeValidator(_take_path)]


@dataclass(frozen=True, config=CONFIG)
class CompareRequest(Request):
    """The two sides of a comparison, or one with competitors."""

    a: Annotated[SideName, OptionStyle(metavar="A", is_positional=True)]
    """A folder of collected tables, a pack, a run folder, or the start of a run id in results/runs."""
    b: Annotated[SideName | None, OptionStyle(metavar="B", is_positional=True)] = None
    """The other side, given in the same way. Without it, the competitors in A are compared."""


CHANGED, NOISE, UNDECIDED = ("faster", "slower"), "within noise", "undecided"
"""The verdicts about B. A pair is undecided if it has too few launches or blocks for an interval."""
ENOUGH_LAUNCHES = 10
"""With this many launches, a difference of 10 % is found even if launches spread by 4 %."""
WIDE = 0.1
"""The half-width of an interval, relative to the ratio 1, from which more launches are recommended."""


def format_ratio_interval(interval: "Interval | None") -> str:
    """Format the interval of a ratio: 1.05 - 1.21."""
    return f"{interval.low:.3g} - {interval.high:.3g}" if interval else ""


RATIO = TableColumn("ratio", "B over A", "number")
INTERVAL = TableColumn("interval", "interval", "number", format=format_ratio_interval)
DIFFERENCE_COLUMNS = (
    TableColumn("label", "run"),
    TableColumn("verdict", "B is"),
    RATIO,
    INTERVAL,
    TableColumn("seconds_a", "A", "s"),
    TableColumn("seconds_b", "B", "s"),
    TableColumn("change", "largest change", may_drop=True),
    TableColumn("launches", "launches", "whole", may_drop=True),
)
COMPETITOR_COLUMNS = (
    TableColumn("case", "case"),
    TableColumn("a", "A"),
    TableColumn("b", "B"),
    TableColumn("verdict", "B is"),
    RATIO,
    INTERVAL,
    TableColumn("blocks", "blocks", "whole"),
)
PART_COLUMNS = (
    TableColumn("part", "part"),
    TableColumn("seconds_a", "A", "s"),
    TableColumn("seconds_b", "B", "s"),
)
MOST_PARTS = 6
"""The number of parts of an epoch that are listed for a run."""


@plain_dataclass(frozen=True)
class CompareAnswer(Answer):
    """The differences of two sides, or the pairs of competitors of one side. A ratio above 1 means that B is slower."""

    differences: "Sequence[Difference]" = ()
    competitors: "Sequence[CompetitorPair]" = ()

    def to_document(self) -> Any:
        if self.competitors:
            return [pair._asdict() for pair in self.competitors]
        return [{**each._asdict(), "verdict": each.verdict} for each in self.differences]

    def to_frame(self) -> Any:
        import pandas as pd

        rows = list(map(make_pair_row, self.competitors)) or list(map(make_difference_row, self.differences))
        ends = [
            {
                "low": row["interval"].low if row["interval"] else None,
                "high": row["interval"].high if row["interval"] else None,
            }
            for row in rows
        ]
        return pd.DataFrame([{**row, **end} for row, end in zip(rows, ends, strict=True)]).drop(
            columns=["interval", "change"], errors="ignore"
        )

    def lay_out(self, view: View) -> Iterator[Block]:
        if self.competitors:
            yield from self._lay_out_competitors()
        elif len(self.differences) == 1:
            yield from _lay_out_single(self.differences[0])
        else:
            yield from self._lay_out_differences(view)

    def _lay_out_differences(self, view: View) -> Iterator[Block]:
        unchanged = [each for each in self.differences if each.verdict not in CHANGED]
        changed = [each for each in self.differences if each.verdict in CHANGED]
        counts = Counter(each.verdict for each in self.differences)
        parts = [f"{counts[verdict]} {verdict}" for verdict in (*CHANGED, NOISE)]
        parts += [f"{counts[UNDECIDED]} {UNDECIDED}"] if counts[UNDECIDED] else []
        pairs = format_count(len(self.differences), "pair")
        yield Headline(f"{pairs}: {', '.join(parts)}{describe_noise(unchanged)}")
        yield recommend_launches(self.differences)
        changed.sort(key=lambda each: max(each.ratio, 1 / each.ratio), reverse=True)
        shown = [*changed, *(unchanged if view.all else ())]
        yield Table(DIFFERENCE_COLUMNS, list(map(make_difference_row, shown)))
        if unchanged and not view.all:
            yield f"... {format_count(len(unchanged), 'other pair')} (--all)"
        if view.verbose:
            for each in shown:
                if each.differs or any(a != b for _, a, b in each.parts):
                    yield Headline(each.label)
                    yield from lay_out_details(each)
        elif shown:
            yield "-v lists the parts, elements and settings that differ."

    def _lay_out_competitors(self) -> Iterator[Block]:
        from harness.results.launch_intervals import correct_level, count_needed_blocks

        rows = sorted(map(make_pair_row, self.competitors), key=lambda row: row["verdict"] not in CHANGED)
        counts = Counter(row["verdict"] for row in rows)
        parts = [f"{counts[verdict]} {verdict}" for verdict in (*CHANGED, NOISE)]
        if counts[UNDECIDED]:
            needed = count_needed_blocks(correct_level(len(rows)))
            over = f" over {len(rows)} pairs" if len(rows) > 1 else ""
            parts.append(f"{counts[UNDECIDED]} {UNDECIDED} (an interval{over} needs {needed} blocks)")
        yield Headline(f"{format_count(len(rows), 'pair')} of competitors, B against A: {', '.join(parts)}")
        yield Table(COMPETITOR_COLUMNS, rows, most_rows=MOST_ROWS)


def _lay_out_single(difference: "Difference") -> Iterator[Block]:
    a, b = map(format_seconds, difference.seconds)
    interval = format_ratio_interval(difference.interval)
    yield Headline(
        f"B takes {difference.ratio:.2f} times as long as A{f' ({interval})' if interval else ''}, "
        f"{a} -> {b} an epoch: {difference.verdict}"
    )
    yield recommend_launches([difference])
    yield from lay_out_details(difference)


def lay_out_details(difference: "Difference") -> Iterator[Block]:
    """Yield the parts of the epoch, the elements and the settings that differ."""
    rows = [{"part": part, "seconds_a": a, "seconds_b": b} for part, a, b in difference.parts if a != b]
    yield Table(
        PART_COLUMNS, rows, "Parts of the median epoch, the largest change first", most_rows=MOST_PARTS
    )
    differs = [(name, f"{a or 'none'} -> {b or 'none'}") for name, (a, b) in difference.differs.items()]
    before, after = difference.elements_received
    if before != after:
        differs.insert(0, ("elements received", f"{format_si(before)} -> {format_si(after)}"))
    if differs:
        yield FactList(differs, "What else differs, A -> B")


def make_difference_row(difference: "Difference") -> dict[str, Any]:
    """Return the row of a table."""
    part = next((part for part, a, b in difference.parts if a != b), None)
    return {
        "label": difference.label,
        "verdict": difference.verdict,
        "ratio": difference.ratio,
        "interval": difference.interval,
        "seconds_a": difference.seconds[0],
        "seconds_b": difference.seconds[1],
        "change": part,
        "launches": format_launches(difference.launches),
    }


def make_pair_row(pair: "CompetitorPair") -> dict[str, Any]:
    """Return the row of a table."""
    from harness.results.launch_intervals import judge_ratio

    row = {key: getattr(pair, key) for key in ("case", "a", "b", "ratio", "interval")}
    return {**row, "verdict": judge_ratio(pair.interval), "blocks": len(pair.ratios)}


def format_launches(launches: tuple[int, int]) -> str:
    """Format the launches of both sides: one number if they are equal."""
    a, b = launches
    return str(a) if a == b else f"{a} and {b}"


def _describe_launches(launches: int, runs: int) -> str:
    """Describe launches, and the runs that count as one launch because they were forked from one process."""
    if launches == runs:
        return format_count(launches, "launch", "launches")
    return f"{format_count(runs, 'run')} forked from {format_count(launches, 'process', 'processes')}"


def describe_noise(unchanged: "Sequence[Difference]") -> str:
    """Return the width of the widest interval, in brackets; empty without intervals."""
    widths = [_measure_width(each.interval) for each in unchanged if each.interval]
    return f" (widest +-{100 * max(widths):.0f} %)" if widths else ""


def _measure_width(interval: "Interval") -> float:
    return max(interval.high - 1, 1 - interval.low)


def recommend_launches(differences: "Sequence[Difference]") -> str:
    """Return how many launches an interval needs, or would make wide intervals narrower; empty if there are enough."""
    from harness.results.launch_intervals import correct_level, count_needed_launches

    over = f" over {len(differences)} pairs" if len(differences) > 1 else ""
    if undecided := [each for each in differences if each.verdict == UNDECIDED]:
        needed = count_needed_launches(correct_level(len(differences)))
        fewest = min(undecided, key=lambda each: sorted(each.launches))
        a, b = map(_describe_launches, fewest.launches, fewest.runs)
        return (
            f"An interval{over} needs {needed} launches of each side; {'in one pair ' if over else ''}A has {a} and B "
            f"has {b}. Repeat the runs with `harness run ... --launches {max(needed, ENOUGH_LAUNCHES)}`."
        )
    wide = [
        each.launches
        for each in differences
        if each.verdict == NOISE and each.interval and _measure_width(each.interval) > WIDE
    ]
    if wide and min(map(min, wide)) < ENOUGH_LAUNCHES:
        return f"More launches make intervals narrower: repeat the runs with --launches {ENOUGH_LAUNCHES}."
    return ""


@verb(CompareRequest)
def compare(request: CompareRequest, _: Reporter) -> CompareAnswer:
    """Compare two runs, or the same runs of two commits.

    A run stands for all launches of its spec (`harness run --launches N`). In two folders of tables, the runs that
    differ only in their launch and seed are compared. A ratio above 1 means that B is slower. It is the median of the
    ratios of every launch of B to every launch of A, and its interval consists of two of these ratios. With a chance of
    95 %, the intervals of all pairs contain their true ratios. A pair whose interval contains 1 is within noise. With
    too few launches for an interval it is undecided, however many epochs they have: one pair needs four launches of
    each side, ten pairs six. With a single folder of tables, its competitors are compared by ratios within blocks: runs
    on the same nodes, one after the other.
    """
    from harness.results.statistics import compare_sides

    runs = request.default_runs
    first = _load_side(request.a, runs)
    if request.b is None:
        return _compare_competitors(request.a, first)
    second = _load_side(request.b, runs)
    if request.a != request.b and first.runs.equals(second.runs):  # two launches of one spec
        first, second = (_load_side(name, runs, all_launches=False) for name in (request.a, request.b))
    differences = compare_sides(first, second)
    if not differences:
        raise UserError(
            f"{request.a} and {request.b} have no measured runs of the same spec, so no runs can be paired. "
            "`harness compare RUN RUN` compares two runs of any specs."
        )
    return CompareAnswer(differences)


def _load_side(name: str, runs: Path, *, all_launches: bool = True) -> "Side":
    """Load one side: the measured runs of a pack, or what else its name means."""
    from harness.results.collect import load_side, make_side

    if not Path(name).is_file():
        return load_side(name, runs, all_launches=all_launches)
    from harness.report.pack.reading import read_pack

    pack = read_pack(Path(name))
    records = [pack.read_run(run_id) for run_id in pack.runs]
    measured = [record for record in records if record.record["source"] == "measured"]
    if not measured:
        raise UserError(f"{name} has no measured runs, so there is nothing to compare.")
    return make_side(measured)


def _compare_competitors(name: str, side: "Side") -> CompareAnswer:
    from harness.results.statistics import compare_competitors

    competitors = compare_competitors(side.runs)
    if not competitors:
        raise UserError(
            f"{name} has no two measured competitors in the same block. Runs share a block if one job of a "
            "workflow, or one `harness run --spec FILE FILE`, starts them; `harness compare A B` compares others."
        )
    return CompareAnswer(competitors=competitors)
