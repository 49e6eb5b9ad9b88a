"""The command line: thin. It reads options, calls one function, prints the answer.

No module of this room imports torch until a verb needs torch. Exit codes: 0 done, 1 the work ran and did not succeed,
2 the request was wrong, 70 the harness itself is at fault, 130 interrupted.
"""

import argparse
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
from harness.cli import data, listing, planning, predicting, proving, reporting, running
from harness.cli.options import Parser, add_verb, show, tell
from harness.errors import RunError, UserError, environment_error, missing_package_error
from harness.spec.root import find_results_folder, find_root
from harness.untrusted import redact_command, redact_secrets
from harness.validation import clip_line

EXIT_UNFORESEEN, EXIT_INTERRUPTED = 70, 130
PARAGRAPH = 1400
"""The most characters of a refusal."""
DEBUG = "HARNESS_DEBUG"
"""The environment variable that makes an unforeseen error end in a traceback instead of one line."""
ABOUT = "Runs, proves and compares parallel GNN training strategies."
START = """\
start with:
  harness list datasets
  harness run --strategy cagnet-1d --dataset tiny-sbm --ranks 2
  harness collect && harness figures && harness report

`harness VERB --help` lists the options of a verb.
exit codes: 0 done, 1 the work ran and did not succeed, 2 the request was wrong, 70 a defect of the harness,
130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb and returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    _print_what_the_terminal_cannot_show()
    try:
        options = _parser().parse_args(words)
        code = int(options.act(options))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of the answer has closed the pipe, so no message can reach anybody
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt) as error:
        code, message = _ending(error)
    message = redact_secrets(message)
    if "--json" in words[: words.index("--") if "--" in words else None]:
        print(json.dumps({"error": message, "exit_code": code}, indent=2))
    tell(f"harness: {message}")
    return code


def _print_what_the_terminal_cannot_show() -> None:
    """Prints an escape for a character that the encoding of the terminal lacks, as that of the locale C does."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _ending(error: BaseException) -> tuple[int, str]:
    """The exit code of an error, and one paragraph about it."""
    if isinstance(error, ModuleNotFoundError):
        error = missing_package_error(error) or error
    if isinstance(error, OSError):
        error = environment_error(error) or error
    if isinstance(error, UserError):
        return 2, clip_line(str(error), PARAGRAPH)
    if isinstance(error, RunError):
        return 1, str(error)
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED, "interrupted"
    if os.environ.get(DEBUG):
        raise error
    assert isinstance(error, Exception)
    return EXIT_UNFORESEEN, _unforeseen(error)


def _unforeseen(error: Exception) -> str:
    """One line for an error that no code expected; its traceback goes to a file."""
    summary = clip_line(f"{type(error).__name__}: {error}".rstrip(". "), 300)
    text = f"harness {__version__}: {redact_command(sys.argv)}\n{''.join(traceback.format_exception(error))}"
    return f"An unforeseen error: {summary}. {_kept(text)} {DEBUG}=1 shows it at once."


def _kept(text: str) -> str:
    """Writes a traceback among the results, or to a temporary folder if that fails, and names the file."""
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
    return find_results_folder(find_root()) / "logs" / "errors"


def _parser() -> Parser:
    parser = Parser(
        prog="harness", description=ABOUT, epilog=START, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"harness {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for module in (listing, data, planning, predicting, running, proving, reporting):
        module.add_verbs(verbs)
    add_verb(
        verbs,
        "completion",
        lambda options: _completion(options, parser),
        "Print the completion of this command for a shell.",
        'In ~/.bashrc: eval "$(harness completion)" (zsh needs first: autoload -U bashcompinit && bashcompinit).',
    )
    return parser


SCRIPT = """\
_harness() {{
  local verb="" words="" word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$verb $word" in
      {verbs}) verb="$verb $word" ;;
    esac
  done
  case "$verb" in
    {words}
  esac
  case "${{COMP_WORDS[COMP_CWORD-1]}}" in
    {values}
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _harness harness
"""


def _completion(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Verbs, actions and options from the parser; and the values of --strategy, --machine, --dataset and --set."""
    from harness.registry import registered_strategies
    from harness.spec.machine_card import list_machines
    from harness.spec.spec import list_spec_keys
    from harness.store.catalog import list_cards

    known = _words_of(parser, "")
    root = find_root(options.root)
    values = {
        "--strategy": [point.name for point in registered_strategies()],
        "--machine": list_machines(root),
        "--dataset": list_cards(root),
        "--set": [f"{key}=" for key in list_spec_keys()],
    }
    script = SCRIPT.format(
        verbs=" | ".join(f'"{name}"' for name in known if name),
        words="\n    ".join(f'"{name}") words="{" ".join(words)}" ;;' for name, words in known.items()),
        values="\n    ".join(f'{name}) words="{" ".join(words)}" ;;' for name, words in values.items()),
    )
    show(options, {"verbs": known, "values": values}, script)
    return 0


def _words_of(parser: argparse.ArgumentParser, path: str) -> dict[str, list[str]]:
    """The words that may follow a verb or an action, by the words before, each after a space."""
    own, below = (
        [word for action in parser._actions for word in action.option_strings],
        dict[str, list[str]](),
    )
    for action in parser._actions:
        if not action.option_strings:
            own += map(str, action.choices or ())
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                below |= _words_of(child, f"{path} {name}")
    return {path: own, **below}
