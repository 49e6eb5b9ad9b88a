"""The command line: thin. It reads options, calls one function, prints what came back.

Nothing here imports torch until a verb needs it. Exit codes: 0 done as asked, 1 it ran and did not succeed,
2 the request was wrong, 70 the harness itself is at fault, 130 it was interrupted.
"""

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from harness import __version__
from harness.cli import check, data, doctor, external, listing, planning, replaying, running, tables, words
from harness.cli.request import Parser
from harness.errors import RunError, UserError
from harness.spec.root import project_root, results_folder
from harness.validation import clipped

EXIT_UNFORESEEN, EXIT_INTERRUPTED = 70, 130
PARAGRAPH = 1400
"""Characters of a refusal, at most."""
DEBUG = "HARNESS_DEBUG"
"""Of the environment: if set, an unforeseen error is raised and not told in a line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb and returns its exit code."""
    try:
        options = _parser().parse_args(argv)
        code = int(options.act(options))
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"harness: {clipped(str(error), PARAGRAPH)}", file=sys.stderr)
        return 2
    except RunError as error:
        print(f"harness: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("harness: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # whoever read the answer has enough of it: there is nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        print(f"harness: {_unforeseen(error)}", file=sys.stderr)
        return EXIT_UNFORESEEN


def _unforeseen(error: Exception) -> str:
    """One line of an error that no code expected, whose traceback goes to a file."""
    told = clipped(f"{type(error).__name__}: {error}".rstrip(". "), 300)
    text = f"harness {__version__}: {sys.argv}\n{''.join(traceback.format_exception(error))}"
    return f"An unforeseen error: {told}. {_kept(text)} {DEBUG}=1 shows it at once."


def _kept(text: str) -> str:
    """Where the traceback is: among the results, or in a temporary folder where they cannot be written."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    for folder in (_log_folder, tempfile.mkdtemp):
        try:
            path = Path(folder()) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, errors="backslashreplace")
        except (OSError, UserError):
            continue
        return (
            f"The traceback is in {path}: it is a defect of the harness, so please report it with that file."
        )
    return "The traceback could be written nowhere."


def _log_folder() -> Path:
    return results_folder(project_root()) / "logs" / "errors"


def _parser() -> Parser:
    parser = Parser(prog="harness", description="Runs, proves and compares parallel GNN training strategies.")
    parser.add_argument("--version", action="version", version=f"harness {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for module in (doctor, listing, data, planning, replaying, words, running, external, check, tables):
        module.add_verbs(verbs)
    return parser
