"""Every result on a page is the number of a cell of a record, and every other number is known to be no result."""

import re
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.page_numbers import Page, find_entries, list_pages, write_number
from benchmarks.recorded_tables import Table, read_tables, said, table

ROOT = Path(__file__).parents[1]


def name_page(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def read_page(path: Path) -> Page:
    return Page.read(path)


def list_untied(page: Page) -> list[str]:
    """Return the numbers of a page that may be results and are tied to no cell, each with its line."""
    return [
        f"{match.group()} in: {page.text[page.text.rfind(chr(10), 0, match.start()) + 1 :].partition(chr(10))[0]}"
        for match, kind in page.classify()
        if not kind
    ]


@pytest.mark.parametrize("path", list_pages(), ids=name_page)
def test_page_has_the_numbers_of_the_records(path: Path) -> None:
    page = read_page(path)
    assert not page.problems, f"mend {find_entries(path)}, or the page"
    assert page.write() == page.text, f"run python docs/write_results.py {name_page(path)}"


@pytest.mark.parametrize("path", list_pages(), ids=name_page)
def test_every_number_is_tied_to_a_cell_or_is_no_result(path: Path) -> None:
    file = find_entries(path).relative_to(ROOT)
    advice = f"tie it to a cell by an entry of {file} (results, tables), or list its words there (settings, unrecorded)"
    assert not list_untied(read_page(path)), advice


def test_every_file_of_entries_belongs_to_a_page() -> None:
    files = {find_entries(path) for path in list_pages()}
    assert [file for file in (ROOT / "docs" / "results").rglob("*.yaml") if file not in files] == []


def test_command_leaves_a_page_with_right_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(ROOT / "docs" / "write_results.py"))["main"]
    assert (main([str(ROOT / "README.md")]), capsys.readouterr().out) == (0, "")
    assert main(["--list", str(ROOT / "README.md")]) == 0
    assert re.match(r"README.md: .*\b\d+ tied, ", capsys.readouterr().out)
    assert main(["CHANGELOG.md"]) == 2
    assert "is not a page with tied numbers" in capsys.readouterr().out


# A page of two sentences and a table.

TEXT = """# A page

The epoch takes 2.0 s, 40 % of the rival's, on 4 hosts in 2024. At most 3 % are lost.

| strategy | seconds (interval) | note |
| --- | --- | --- |
| `ours` | 2.0 (1.9 to 2.2) | 7 |
| `rival` | 5.0 (4.1 to 5.3) | 7 |
"""
ENTRIES: dict[str, Any] = {
    "names": {"seconds": "dict(ours=[2.04, 1.9, 2.2], rival=[5.0, 4.1, 5.3])"},
    "results": {
        "epoch takes {} s, {} % of the rival's": "seconds['ours'][0], 100 * seconds['ours'][0] / seconds['rival'][0]",
        "At most {<} % are lost": "2.6",
    },
    "tables": [
        {
            "header": "strategy | seconds (interval) | ...",
            "settings": ["note"],
            "columns": {"seconds (interval)": "seconds[name]"},
        }
    ],
}


def change_entries(**changed: Any) -> Page:
    return Page(TEXT, {**ENTRIES, **changed})


def test_numbers_of_a_page_are_classified() -> None:
    page = change_entries(results={"epoch takes {} s": "2.04"})
    kinds = {match.group(): kind for match, kind in page.classify()}
    assert kinds["2.0"] == kinds["5.3"] == "tied"
    assert (kinds["7"], kinds["4"], kinds["2024"]) == ("settings", "setting", "year")
    assert [kinds["40"], kinds["3"]] == ["", ""]


def test_number_after_is_may_be_a_result_but_not_an_exit_code() -> None:
    page = Page("Computing is 30 % of an epoch. The exit code is 1.\n", {})
    assert [(match.group(), kind) for match, kind in page.classify()] == [("30", ""), ("1", "reference")]


def test_page_with_the_numbers_of_its_cells_stays() -> None:
    page = change_entries()
    assert (page.problems, page.write()) == ([], TEXT.replace("40 %", "41 %"))
    assert not [match for match, kind in page.classify() if not kind]


def test_numbers_of_changed_cells_are_written_with_as_many_digits() -> None:
    changed = {"seconds": "dict(ours=[1233.7, 1.91, 2.2], rival=[5.04, 4.1, 5.36])"}
    page = change_entries(names=changed, results={})
    assert "| 1,234 (1.9 to 2.2) |" in page.write()
    assert "| 5.0 (4.1 to 5.4) |" in page.write()


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"results": {"epoch takes {} hours": "2"}}, "0 times"),
        ({"results": {"takes {} s": "2, 3"}}, "has 1 numbers, and 2 values"),
        ({"results": {"At most {<} % are lost": "3.4"}}, "3 is not a bound of 3.4"),
        ({"results": {"takes {} s": "unknown('a cell')"}}, "NameError"),
        ({"holds": {"40 % of the rival's": "1 > 2"}}, "is no longer true"),
        ({"settings": ["on 5 hosts"]}, "0 times"),
        ({"tables": [{"header": "strategy | cost", "columns": {}}]}, "0 tables"),
        (
            {"results": {"takes {} s": "2", "The epoch takes {} s": "3"}},
            "another entry gives 2.0, and not 3.0",
        ),
        ({"tables": [{"header": "strategy | ...", "columns": {"note": "1, 2"}}]}, "has not 2 numbers"),
    ],
)
def test_entry_that_no_longer_fits_is_a_problem(changed: dict[str, Any], problem: str) -> None:
    assert problem in "; ".join(change_entries(**changed).problems)


def test_name_that_cannot_be_computed_is_one_problem() -> None:
    page = change_entries(names={"seconds": "unknown('a table')"})
    assert page.problems == ["seconds: NameError: name 'unknown' is not defined"]


def test_copied_table_follows_the_record() -> None:
    copied = Table("record", "", ["strategy", "s"], [["ours", "1.0"], ["other", "3.0"], ["rival", "5.0"]])
    page = Page(TEXT, {"tables": [{"header": "strategy | ...", "copy": copied}]})
    assert page.write().endswith(
        "| strategy | s |\n| --- | --- |\n| ours | 1.0 |\n| other | 3.0 |\n| rival | 5.0 |\n"
    )


@pytest.mark.parametrize(
    ("value", "written", "digits", "expected"),
    [
        (0.8149, "0.81", 0, "0.81"),
        (0.8151, "0.81", 0, "0.82"),
        (0.815, "0.81", 0, "0.81"),  # a record that is rounded itself
        (12.6, "9", 0, "13"),
        (27_933, "28,000", 2, "28,000"),
        (27_933, "28,000", 0, "27,933"),
        (28_789, "28,000", 2, "29,000"),
        (4.2e-11, "4.1e-11", 0, "4.2e-11"),
        (3, "three", 0, "three"),
        (4, "three", 0, "four"),
        (0.0312, "0.52", 0, "0.031"),
    ],
)
def test_number_stays_if_it_is_the_value_rounded(
    value: float, written: str, digits: int, expected: str
) -> None:
    assert write_number(value, written, digits) == expected


RECORD = """# record

    python -m benchmarks first

| name | ranks | s | words | s |
| --- | --- | --- | --- | --- |
| a | 2 | 1.5 (1 to 2) | 1,000 | 7 |
| b | 2 | 2.5 (2 to 3) | 2,000 | 8 |

    python -m benchmarks second

```
                median ms    min ms
plain torch         3.89      3.53
a name that is longer   13.76   10.51
```

2 of 3 are right.

claim    printed  ours         verdict
AAA-001  2 x      1 [0 to 2]   holds
AAA-002                        none
"""


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("benchmarks.recorded_tables.ROOT", tmp_path)
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "record.md").write_text(RECORD)
    return "some/record.md"


def test_cell_is_found_by_its_row_and_column(record: str) -> None:
    first = table(record, "first")
    assert (first("s", "a"), first.numbers("s", "b"), first("s (2)", "b", ranks=2)) == (
        1.5,
        [2.5, 2.0, 3.0],
        8.0,
    )
    assert first.all("words") == [1000.0, 2000.0]
    assert table(record, "second", "median ms")("min ms", "plain torch") == 3.53
    assert table(record, "second", "median ms")("median ms", "a name that is longer") == 13.76
    assert table(record, "verdict").text("ours", "AAA-002") == ""
    assert table(record, "verdict").numbers("ours", "AAA-001") == [1.0, 0.0, 2.0]
    assert said(record, "{} of {} are right") == [2.0, 3.0]


def test_cell_that_is_not_one_is_refused(record: str) -> None:
    first = table(record, "first")
    with pytest.raises(LookupError, match="2 rows"):
        first("s", ranks=2)
    with pytest.raises(LookupError, match="0 columns"):
        first("seconds", "a")
    with pytest.raises(LookupError, match="no number in name"):
        first("name", "a")
    with pytest.raises(LookupError, match="3 tables"):
        table(record)
    with pytest.raises(LookupError, match="0 times"):
        said(record, "{} of {} are wrong")


def test_table_of_values_with_commas_is_read_from_csv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('name,grid\na,"p=2,q=3"\n')
    assert read_tables(tmp_path / "a.csv")[0].rows("a") == [{"name": "a", "grid": "p=2,q=3"}]
