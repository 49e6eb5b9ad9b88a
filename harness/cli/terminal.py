"""What the command line prints: answers to stdout; messages and progress to stderr.

All text is escaped before it is printed, because names, labels and errors may come from untrusted files.
"""

import json
import sys
import time

from harness.base.untrusted import escape_control
from harness.cli.commands.answer import Answer
from harness.cli.commands.output import View


def print_answer(answer: Answer, view: View, *, as_json: bool) -> None:
    """Print an answer, as JSON or for people. An answer without a document prints nothing."""
    if as_json:
        if (document := answer.to_document()) is not None:
            print(json.dumps(document, indent=2, default=str), flush=True)
        return
    from harness.cli.commands.rendering import make_console, render

    render(answer.lay_out(view), view, make_console(sys.stdout))
    sys.stdout.flush()


def print_message(message: str) -> None:
    """Print a message to stderr."""
    print(escape_control(message), file=sys.stderr, flush=True)


class TerminalReporter:
    """Prints progress to stderr, with an estimate of the remaining time of work in steps.

    On a terminal one line is rewritten in place and cleared at the end. In a log a new line is printed, for steps at
    most every `INTERVAL` seconds. Step 0 restarts the clock: work in several parts counts the steps of each part.
    """

    INTERVAL = 5.0

    def __init__(self, view: View, *, as_json: bool) -> None:
        self.view, self.as_json = view, as_json
        self.started = self.printed = time.monotonic()
        self.is_dirty = False

    def __enter__(self) -> "TerminalReporter":
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def _clear(self) -> None:
        if self.is_dirty:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self.is_dirty = False

    def _print_line(self, line: str) -> None:
        """Print a line of progress, which the next one replaces on a terminal."""
        if sys.stderr.isatty():
            from harness.base.validation import clip_line  # which imports pydantic

            print(f"\r\x1b[K{clip_line(line, 78)}", end="", file=sys.stderr, flush=True)
            self.is_dirty = True
        else:
            print(line, file=sys.stderr, flush=True)

    def log(self, message: str) -> None:
        self._print_line(escape_control(message))

    def warn(self, message: str) -> None:
        self._clear()
        print_message(message)

    def step(self, completed: int, total: int, activity: str, eta: float | None = None) -> None:
        """Print that `completed` of `total` steps are done. `eta` replaces the estimate of the remaining seconds."""
        now = time.monotonic()
        if completed == 0:
            self.started = now
        if not sys.stderr.isatty() and now - self.printed < self.INTERVAL:
            return
        self.printed, spent = now, now - self.started
        if eta is None and completed and spent > 1:
            eta = spent / completed * (total - completed)
        left = "" if eta is None else f", about {_format_duration(eta)} left"
        from harness.base.validation import clip_line

        self._print_line(clip_line(escape_control(f"{completed + 1} of {total}{left}: {activity}"), 78))

    def show(self, answer: Answer) -> None:
        if not self.as_json:
            self._clear()
            print_answer(answer, self.view, as_json=False)
            print(flush=True)  # an empty line before what follows


def _format_duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
