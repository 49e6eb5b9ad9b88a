"""The command line: thin. It reads options, calls one function, prints what came back.

Nothing here imports torch until a verb needs it. Exit codes: 0 done as asked, 1 it ran and did not succeed,
2 the request was wrong.
"""

import argparse
import sys
from collections.abc import Sequence

from harness import __version__
from harness.cli import check, data, doctor, external, listing, planning, replaying, running, tables, words
from harness.errors import RunError, UserError

EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb and returns its exit code."""
    options = _parser().parse_args(argv)
    try:
        return int(options.act(options))
    except UserError as error:
        print(f"harness: {error}", file=sys.stderr)
        return 2
    except RunError as error:
        print(f"harness: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("harness: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="harness", description="Runs, proves and compares parallel GNN training strategies."
    )
    parser.add_argument("--version", action="version", version=f"harness {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for module in (doctor, listing, data, planning, replaying, words, running, external, check, tables):
        module.add_verbs(verbs)
    return parser
