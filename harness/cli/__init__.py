"""The command line. Each verb reads its request, calls its function and prints the answer (`harness.cli.commands`).

Importing this package imports neither torch nor pydantic nor the parser: each verb imports what it needs. Exit codes:
0 done, 1 the work ran and did not succeed, 2 the request was wrong, 70 a defect of the harness, 130 interrupted.
"""

import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

from harness import __version__
from harness.base.errors import RunError, UserError, environment_error, missing_package_error
from harness.base.untrusted import redact_command, redact_secrets

EXIT_INTERNAL, EXIT_INTERRUPTED = 70, 130
MAX_MESSAGE = 1400
"""The maximum number of characters in the message of a UserError."""
DEBUG = "HARNESS_DEBUG"
"""The environment variable with which an unexpected error prints its traceback."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    _escape_unencodable_output()
    try:
        return _run_verb(words)
    except BrokenPipeError:  # the reader has closed the pipe, so a message would not arrive
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt) as error:
        code, message = _describe_error(error)
    message = redact_secrets(message)
    if "--json" in words[: words.index("--") if "--" in words else None]:
        print(json.dumps({"error": message, "exit_code": code}, indent=2))
    from harness.cli.terminal import print_message

    print_message(f"harness: {message}")
    return code


def _run_verb(words: list[str]) -> int:
    """Run a verb, print its answer, and return its exit code."""
    from harness.cli.app import make_app, parse
    from harness.cli.terminal import TerminalReporter, print_answer

    parsed = parse(make_app(), words)
    if parsed is None:
        return 0
    with TerminalReporter(parsed.view, as_json=parsed.json) as reporter:
        answer = parsed.declaration.run(parsed.request, reporter)
    print_answer(answer, parsed.view, as_json=parsed.json)
    return answer.exit_code


def _escape_unencodable_output() -> None:
    """Print characters that the encoding of the terminal lacks, as with the locale C, as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _describe_error(error: BaseException) -> tuple[int, str]:
    """Return the exit code for an error, and a message of one paragraph."""
    if isinstance(error, ModuleNotFoundError):
        error = missing_package_error(error) or error
    if isinstance(error, OSError):
        error = environment_error(error) or error
    if isinstance(error, UserError):
        from harness.base.validation import clip_line

        return 2, clip_line(str(error), MAX_MESSAGE)
    if isinstance(error, RunError):
        return 1, str(error)
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED, "interrupted"
    if os.environ.get(DEBUG):
        raise error
    assert isinstance(error, Exception)
    return EXIT_INTERNAL, _describe_internal_error(error)


def _describe_internal_error(error: Exception) -> str:
    """Return the message for an unexpected error, and write its traceback to a file."""
    from harness.base.validation import clip_line

    summary = clip_line(f"{type(error).__name__}: {error}".rstrip(". "), 300)
    text = f"harness {__version__}: {redact_command(sys.argv)}\n{''.join(traceback.format_exception(error))}"
    return f"Internal error: {summary}. {_write_traceback(text)} {DEBUG}=1 prints it directly."


def _write_traceback(text: str) -> str:
    """Write a traceback to the results folder, or to a temporary one if that fails. Return a message with its path."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    for folder in (_log_folder, tempfile.mkdtemp):
        try:
            path = Path(folder()) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(redact_secrets(text), errors="backslashreplace", encoding="utf-8")
        except (OSError, UserError):
            continue
        return f"The traceback is in {path}: this is a defect of the harness, so please report it with that file."
    return "The traceback could not be written to any folder."


def _log_folder() -> Path:
    from harness.spec.root import find_results_folder, find_root

    return find_results_folder(find_root()) / "logs" / "errors"
