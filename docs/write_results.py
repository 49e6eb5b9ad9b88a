"""Write the numbers of records into README.md and docs: `python docs/write_results.py [--list] [PAGE ...]`.

With `--list`, no page is written. The numbers of each are counted by kind, and those that are neither tied to a cell of
a record nor known to be no results are shown. The exit code is 1 if an entry of docs/results does not fit.
"""

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the package benchmarks is not installed

from benchmarks.page_numbers import Page, find_entries, list_pages
from benchmarks.recorded_tables import ROOT


def main(words: list[str]) -> int:
    named, code = [Path(word).resolve() for word in words if word != "--list"], 0
    if unknown := [path for path in named if path not in list_pages()]:
        print(
            f"{unknown[0]} is not a page with tied numbers: name README.md or a page of docs, or none for all."
        )
        return 2
    for path in named or list_pages():
        page = Page.read(path)
        if "--list" in words:
            list_numbers(path, page)
        elif not page.problems and page.write() != page.text:
            path.write_text(page.write(), encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
        for problem in page.problems:
            print(f"{find_entries(path).relative_to(ROOT)}: {problem}")
        code = max(code, bool(page.problems))
    return code


def list_numbers(path: Path, page: Page) -> None:
    """Print how many numbers of each kind a page has, and the line of each that has none."""
    numbers = list(page.classify())
    kinds = Counter(kind or "untied" for _, kind in numbers)
    print(f"{path.relative_to(ROOT)}: {', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}")
    for match, kind in numbers:
        if not kind:
            line = page.text[page.text.rfind("\n", 0, match.start()) + 1 :].partition("\n")[0]
            print(f"    {match.group()} in: {line[:200]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
