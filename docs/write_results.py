"""Write the numbers of records into README.md and docs: `python docs/write_results.py [PAGE ...]`.

`--list` only lists the numbers that are neither tied to a cell nor exempt, and counts all by kind.
"""

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the package benchmarks is not installed

from benchmarks.page_numbers import Page, list_pages


def main(words: list[str]) -> int:
    listed = "--list" in words
    named = [Path(word).resolve() for word in words if word != "--list"]
    code = 0
    for path in named or list_pages():
        page = Page.read(path)
        kinds = Counter(kind or "untied" for _, kind in page.classify())
        if listed:
            print(path.name, dict(kinds))
            for match, kind in page.classify():
                if not kind:
                    start = page.text.rfind("\n", 0, match.start()) + 1
                    print(
                        f"    {match.group()}: {page.text[start : page.text.find(chr(10), match.end())][:220]}"
                    )
        elif (text := page.write()) != page.text and not page.problems:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
        for problem in page.problems:
            code = 1
            print(f"{path}: {problem}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
