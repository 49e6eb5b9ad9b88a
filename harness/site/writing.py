"""Writes the site: the pages and the rows of many submissions, as files that any static host can serve."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
from markupsafe import Markup

from harness import __version__
from harness.errors import UserError
from harness.files import has_content, replace_files
from harness.progress import OnStep, ignore_step
from harness.report.page import format_colours
from harness.report.templates import TEMPLATES, format_script_policy, load_template
from harness.results.contributed_rows import ROWS
from harness.results.parquet import serialize_table, to_arrow, to_pandas
from harness.site.contributions import Contribution, find_archives, read_contributions
from harness.site.index_page import make_index
from harness.site.page_parts import Content, Page
from harness.site.ranking import list_versions, rank_runs
from harness.site.rules import apply_rules, describe_tasks, keep_compared_columns
from harness.site.rules_page import make_rules_page
from harness.site.subject_pages import make_machine_page, make_strategy_page
from harness.site.submission_page import make_submission_page
from harness.site.task_page import make_task_page
from harness.spec.machine_card import load_machine_card

FOLDER = Path(__file__).parent
OWN_STYLE = """
.figures { grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr)); }
.figures svg { max-width: 100%; height: auto; }
@media (min-width: 42.01rem) {
  .results td:not(.number) { white-space: normal; overflow-wrap: anywhere; min-width: 6.6rem; }
  .results td.text { min-width: 11rem; }
}
@media (max-width: 42rem) {
  nav a { white-space: normal; }
  .results td:empty { display: none; }
}
.figures a:focus-visible { outline: 2px solid var(--accent); }
details:target > summary { font-weight: 600; }
"""
KEPT = "kept"
"""The folder of the site with what later builds use again: verified rows and charts."""
LONG_TEXTS = ("provenance.command", "spec")
"""The columns that take more than half of the bytes of all rows; the settings of a spec have columns too."""
PAGES = ("tasks", "strategies", "machines", "submissions")


class Look(NamedTuple):
    """What all pages share."""

    name: str
    style: Markup
    script: Markup
    policy: str
    footer: str


@dataclass(frozen=True)
class WrittenSite:
    """A site that was written."""

    folder: Path
    contributions: Sequence[Contribution]
    rows: pd.DataFrame
    pages: int
    written: int
    """The files that changed."""

    @property
    def refused(self) -> list[Contribution]:
        """The archives of which nothing is on the site."""
        return [each for each in self.contributions if each.refusal]


def write_site(places: Sequence[Path], out: Path, root: Path, on_step: OnStep = ignore_step) -> WrittenSite:
    """Write the site of all archives in `places` to the folder `out`.

    Archives that an earlier site in the same folder has are not verified again, and files that are the same are not
    written again. Graphs that are built under `root` are used to verify the elements of runs.
    """
    _check_folder(out)
    contributions = read_contributions(find_archives(places), root, out / KEPT, on_step)
    rows = judge_rows(contributions, root)
    pages = list(_make_pages(rows, contributions, out / KEPT, on_step))
    files = _render_pages(pages)
    files["rows.parquet"] = serialize_table([to_arrow(rows, ROWS)], ROWS)
    files["rows.json"] = _dump_rows(rows)
    changed = {out / name: data for name, data in files.items() if not has_content(out / name, data)}
    replace_files(changed)
    _remove_others(out, set(files))
    return WrittenSite(out, contributions, rows, len(pages), len(changed))


def judge_rows(contributions: Sequence[Contribution], root: Path) -> pd.DataFrame:
    """Return the rows of all contributions, to which the rules were applied."""
    tables = [each.rows for each in contributions if each.rows]
    if not tables:
        reasons = [each.refusal for each in contributions if each.refusal]
        raise UserError(f"No archive has a run for the site. {' '.join(reasons[:1])}")
    rows = to_pandas(pa.concat_tables(tables), ROWS)
    promises = find_promises(sorted(set(rows["strategy.name"])))
    return apply_rules(rows, promises, find_checked_cards(root, sorted(set(rows["machine.name"]))))


def _check_folder(out: Path) -> None:
    """Refuse a folder with files that no site has: they would be removed."""
    if out.exists() and not (out / KEPT).is_dir() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(
            f"{out} exists and is not a site. Name an empty folder, or a site to be built again, by --out."
        )


def find_checked_cards(root: Path, names: Sequence[str]) -> set[str]:
    """Return the machine cards of this project that were compared with runs."""
    checked = set()
    for name in names:
        with suppress(UserError):  # a card of others is not here
            if load_machine_card(root, name).checked is not None:
                checked.add(name)
    return checked


def find_promises(strategies: Sequence[str]) -> dict[str, str]:
    """Return what strategies promise, as far as they are installed: exact, estimator or approximate."""
    from harness.experiment.trained_models import describe_strategy
    from harness.registry import registered_strategies

    installed = {point.name for point in registered_strategies()}
    promises = {}
    for name in strategies:
        if name in installed:
            try:
                promises[name] = describe_strategy(name).promise
            except UserError:
                continue  # it is registered twice, or cannot be imported
    return promises


def _make_pages(
    rows: pd.DataFrame, contributions: Sequence[Contribution], kept: Path, on_step: OnStep
) -> Any:
    """Yield all pages."""
    compared, tasks = keep_compared_columns(rows), describe_tasks(rows)
    content = Content(compared, rank_runs(compared), list_versions(compared), contributions, kept, tasks)
    by_submission = dict(list(rows.groupby("submission")))
    yield make_index(content)
    yield make_rules_page()
    for number, task in enumerate(content.tasks):
        on_step(number, len(content.tasks), f"writing {content.tasks[task]}")
        yield make_task_page(task, content)
    for name in sorted(set(rows["strategy.name"])):
        yield make_strategy_page(name, content)
    for name in sorted(set(rows.on_machine)):
        yield make_machine_page(name, content)
    for contribution in contributions:
        if not contribution.refusal:
            yield make_submission_page(contribution, by_submission[contribution.digest])


def _render_pages(pages: Sequence[Page]) -> dict[str, bytes]:
    template = load_template("site_page.html", FOLDER)
    script = (FOLDER / "site.js").read_text(encoding="utf-8")
    look = Look(
        "Parallel GNN Harness, contributed results",
        Markup((TEMPLATES / "page.css").read_text(encoding="utf-8") + format_colours() + OWN_STYLE),
        Markup(script),
        format_script_policy([script]),
        f"Made by parallel-gnn-harness {__version__}. The same archives give the same pages.",
    )
    return {page.path.as_posix(): template.render(page=page, look=look).encode() for page in pages}


def _dump_rows(rows: pd.DataFrame) -> bytes:
    """Return the rows as JSON, without long texts and without columns that have no values."""
    rows = rows.drop(columns=list(LONG_TEXTS))
    used = rows.drop(columns=[name for name in rows if rows[name].isna().all() or (rows[name] == "").all()])
    text: str = used.to_json(orient="records", date_format="iso", double_precision=12)
    return text.encode()


def _remove_others(out: Path, names: set[str]) -> None:
    """Remove pages of earlier sites that this one does not have."""
    for folder in PAGES:
        for path in (out / folder).glob("*.html"):
            if path.relative_to(out).as_posix() not in names:
                path.unlink()
