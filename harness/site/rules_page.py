"""The page of the rules: what is compared, and why a run is not ranked."""

from harness.site.page_parts import Cell, ColumnHeading, Page, Section, SiteTable
from harness.site.rules import FUNCTION, GRAPH, MACHINE, OPEN, RULES
from harness.submission.verification import CHECKS


def make_rules_page() -> Page:
    """Return the page of the rules: what is compared, and why a run is not ranked."""
    marks = SiteTable(
        (ColumnHeading("mark"), ColumnHeading("a run is not ranked if", is_wide=True)),
        [[Cell(rule.mark), Cell(rule.meaning)] for rule in RULES],
    )
    return Page(
        "",
        "rules",
        "Rules of comparison",
        sections=[
            Section(
                "task",
                "The same task",
                [
                    "Runs have the same task if the hash of the graph (its card and source files, whatever the order "
                    f"of its vertices) and these values agree: {', '.join((*GRAPH, *FUNCTION))}."
                ],
            ),
            Section(
                "open",
                "Open settings",
                [
                    f"A contributor chooses {', '.join(OPEN)}. Runs that agree in these are launches of one "
                    "configuration. Learning rate, seeds and the number of epochs do not change what an epoch "
                    "computes, and are free."
                ],
            ),
            Section(
                "machines",
                "The same machine",
                [
                    f"Times are compared on one machine only: {', '.join(MACHINE)} agree. Two groups never share a "
                    "machine. Ratios come from competitors in the same block, or else from launches. The intervals of "
                    "a ranking are corrected for all pairs of its configurations; too few launches for them leave "
                    "the order undecided. Exact, estimating and approximate strategies are ranked apart."
                ],
            ),
            Section(
                "targets",
                "Time to a target",
                [
                    "All seeds count, including seeds that did not reach the target. They are numbered 0, 1, 2 and so "
                    "on, and are at least five."
                ],
            ),
            Section("marks", "Runs that are not ranked", ["Such runs are shown with these marks."], marks),
            Section(
                "checks",
                "Checks of a submission",
                ["Each archive is verified before anything of it is shown."],
                SiteTable(
                    (ColumnHeading("check"), ColumnHeading("what holds", is_wide=True)),
                    [[Cell(check), Cell(meaning)] for check, meaning in CHECKS.items()],
                ),
            ),
        ],
    )
