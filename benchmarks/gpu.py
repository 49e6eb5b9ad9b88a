"""Asks a GPU all that this project has to ask, in the order of its worth, and writes results/gpu.md.

    python benchmarks/gpu.py                        for at most 40 minutes; the next call goes on with what is left
    python benchmarks/gpu.py --minutes 7            the same in a short call, as on a machine that is lent
    python benchmarks/gpu.py kit waits              these parts, asked again
    python benchmarks/gpu.py kit --only plexus g3   these rows of them

Laws come first, several processes at a time, while the CPU builds graphs; then measurements, each of which has the GPU
alone. A part has a share of the time, and an item of it a limit. Work is done in child processes: an item that raises,
hangs, or kills its process costs its own row. The parts and their tables are in benchmarks/gpu_parts.py:

PARTS

Needs a CUDA or ROCm build of torch. Nothing has to be installed: a checkout on PYTHONPATH will do.
"""

import argparse
import faulthandler
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from threading import Lock

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout, which need not be installed

from benchmarks.environment import describe, version_of_code
from benchmarks.gpu_common import FULL, QUICK, BrokenLawError, Part, Size
from benchmarks.gpu_parts import PARTS
from harness.base.children import die_with_parent
from harness.base.device import gpu_name
from harness.base.errors import UserError
from harness.base.files import write_text
from harness.comm.engine import Engine, select_device
from harness.runtime.provenance import collect_provenance
from harness.spec.root import find_root

MINUTES = 40
SHORTEST = 10.0
"""The seconds that must be left to start a process."""
START = 60.0
"""The seconds that a process may take before its first item begins."""
LOG = "gpu.log.part"
FAULTY = 3
"""The exit code of a child whose GPU no longer answers; what is left goes to another child."""


@dataclass(frozen=True)
class Answer:
    """What was found of one item of a part."""

    part: str
    item: str
    rows: list[list[str]]
    seconds: float
    error: str = ""
    """What went wrong, in a line."""
    refused: bool = False
    """True if the error is a refusal with its reason: this machine lacks something."""
    version: str = ""


# Children. A child sends lines of JSON: ["row", cells] for each row, and ["end", error, refused] after each item.


def answer_items(part: Part, items: Sequence[str], size: Size, parent: int) -> None:
    """Measures items, one after the other, in this process."""
    die_with_parent(parent, signal.SIGKILL)()
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever libraries print is no answer
    for item in items:
        faulthandler.dump_traceback_later(max(part.each - 3, 1), exit=False)
        error, refused = "", False
        try:
            for row in part.measure(item, size):
                print(json.dumps(["row", [str(cell) for cell in row]]), file=channel)
        except BrokenLawError as law:
            error = str(law)
        except (UserError, ModuleNotFoundError) as refusal:
            print(f"== {item}\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            error, refused = str(refusal), True
        except BaseException as failure:
            print(f"== {item}\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            error = f"{type(failure).__name__}: {failure}"
        print(json.dumps(["end", error, refused]), file=channel)
        if "CUDA error" in error or "AcceleratorError" in error:
            os._exit(FAULTY)
        torch.cuda.empty_cache()
    faulthandler.cancel_dump_traceback_later()


def environment_of_children() -> dict[str, str]:
    """This environment, in which the checkout is found before anything else."""
    checkout = str(find_root())
    path = {"PYTHONPATH": os.pathsep.join([checkout, *filter(None, [os.environ.get("PYTHONPATH")])])}
    return {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", **os.environ, **path}


class TimeOverError(Exception):
    """The time of the part, or of the call, is over."""


class Child:
    """A process that answers items of a part."""

    def __init__(self, part: str, items: Sequence[str], quick: bool, folder: Path) -> None:
        words = ["--child", str(os.getpid()), part, "--only", *items, "--out", str(folder)]
        words += ["--quick"] if quick else []
        self._begun = time.monotonic()
        self._part = part
        with (folder / LOG).open("a") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-u", sys.argv[0], *words],  # a script may have added parts
                cwd=find_root(),
                env=environment_of_children(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._unread = b""

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Ends the process and whatever it has started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout
        self._process.stdout.close()

    def answer(self, item: str, limit: float, until: float) -> Answer | None:
        """The answer of the next item; None if the process has ended between two items.

        Raises TimeOverError at `until`. After `limit` seconds the item is an error, and the process is killed.
        """
        begun, rows = time.monotonic(), list[list[str]]()
        end = begun + limit

        def answer(error: str, refused: bool = False) -> Answer:
            return Answer(self._part, item, rows, time.monotonic() - begun, error, refused)

        while True:
            try:
                line = self._line(min(end, until))
            except TimeOverError:
                if time.monotonic() >= until:
                    raise
                self.kill()
                return answer(f"still busy after {limit:.0f} s")
            if line is None:
                code = self._process.wait()
                between_items = not rows and code in (0, FAULTY)
                return None if between_items else answer(f"the process ended with exit code {code}")
            kind, *content = json.loads(line)
            if kind == "end":
                return answer(*content)
            rows.append(content[0])

    def _line(self, until: float) -> bytes | None:
        """The next line of the process, or None at its end."""
        assert self._process.stdout
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._process.stdout], [], [], max(until - time.monotonic(), 0))
            if not ready:
                raise TimeOverError
            more = os.read(self._process.stdout.fileno(), 1 << 16)
            if not more:
                return None
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line


def ask(name: str, items: Sequence[str], quick: bool, folder: Path, until: float) -> Iterator[Answer]:
    """The answers of items, by one process after another, as far as time allows."""
    waiting, part = list(items), PARTS[name]
    while waiting and until - time.monotonic() > SHORTEST:
        with Child(name, waiting, quick, folder) as child:
            limit = START + part.each
            try:
                while waiting and (answer := child.answer(waiting[0], limit, until)):
                    yield answer
                    del waiting[0]
                    limit = part.each
                    if child_has_ended(answer):
                        break
            except TimeOverError:
                return


def child_has_ended(answer: Answer) -> bool:
    return answer.error.startswith(("still busy", "the process ended"))


# The call.


class Answers:
    """All answers so far, kept in a file line by line, which the next call reads."""

    def __init__(self, file: Path, machine: str, version: str, keep: bool) -> None:
        self._file, self._lock, self._version = file, Lock(), version
        self.of: dict[tuple[str, str], Answer] = {}
        lines = file.read_text().splitlines() if file.exists() else []
        header = [machine, *(field.name for field in fields(Answer))]
        if lines and json.loads(lines[0]) == header:
            known = [Answer(**json.loads(line)) for line in lines[1:]]
            self.of = {(each.part, each.item): each for each in known if keep or each.version == version}
        lines = [json.dumps(header), *(json.dumps(asdict(each)) for each in self.of.values())]
        write_text(file, "\n".join(lines) + "\n")

    def add(self, answer: Answer) -> None:
        answer = Answer(**{**asdict(answer), "version": self._version})
        with self._lock:
            self.of[answer.part, answer.item] = answer
            with self._file.open("a") as file:
                file.write(json.dumps(asdict(answer)) + "\n")
            told = answer.error or " ".join(answer.rows[-1][1:] if answer.rows else [])
            state = "refused" if answer.refused else "ERROR" if answer.error else "ok"
            print(
                f"{answer.part} {answer.item}: {state} [{answer.seconds:.1f} s] {one_line(told, 160)}",
                flush=True,
            )

    def left(self, part: str, items: Iterable[str]) -> list[str]:
        return [item for item in items if (part, item) not in self.of]


def one_line(text: str, most: int) -> str:
    line = next((line for line in text.splitlines() if line.strip()), "").replace("|", "/")
    return line if len(line) <= most else f"{line[: most - 3]}..."


def ask_all(wanted: dict[str, list[str]], answers: Answers, options: argparse.Namespace) -> None:
    """Asks laws side by side while graphs are built, then measurements one after the other."""
    begun, total = time.monotonic(), 60 * options.minutes

    def run(name: str, items: Sequence[str]) -> None:
        for answer in ask(name, items, options.quick, options.out, begun + PARTS[name].share * total):
            answers.add(answer)

    jobs = options.jobs or max(1, len(os.sched_getaffinity(0)) // 2)
    with ThreadPoolExecutor(1) as host, ThreadPoolExecutor(jobs) as lanes:
        building = [host.submit(run, name, items) for name, items in wanted.items() if name == "data"]
        laws = []
        for name, items in wanted.items():
            if PARTS[name].shared and name != "data":
                groups = [[item] for item in items] if PARTS[name].processes else [items]
                laws += [lanes.submit(run, name, group) for group in groups]
        for law in laws:
            law.result()
        for name, items in wanted.items():
            if not PARTS[name].shared:
                if PARTS[name].stores:
                    wait(building)
                run(name, items)
    for each in building:
        each.result()


# The page.


def page(answers: Answers, size: Size, about: str) -> str:
    """All tables, with what is missing."""
    versions = Counter(answer.version for answer in answers.of.values())
    several = f" Rows by version: {', '.join(f'{n} of {each}' for each, n in versions.items())}."
    text = (
        f"# gpu\n\n{about}{several if len(versions) > 1 else ''}\n\n## Summary\n\n{summary(answers, size)}\n"
    )
    for name, part in PARTS.items():
        known = [answers.of[name, item] for item in part.items(size) if (name, item) in answers.of]
        text += f"\n## {name}\n\n{part.question}\n\n" + (table(part, known) if known else "Not asked yet.\n")
        missing = answers.left(name, part.items(size))
        if known and missing:
            text += f"\nNot asked yet: {', '.join(missing)}.\n"
    return text


def table(part: Part, known: Sequence[Answer]) -> str:
    """The rows of a part, with a column of errors if there are any."""
    errors = any(answer.error for answer in known)
    titles = [*part.columns, *(["error"] if errors else [])]
    lines = [titles, ["---"] * len(titles)]
    for answer in known:
        rows = answer.rows or [[answer.item]]
        for number, row in enumerate(rows):
            cells = [one_line(cell, 120) for cell in row] + [""] * (len(part.columns) - len(row))
            last = number == len(rows) - 1
            error = f"{'refused: ' if answer.refused else ''}{one_line(answer.error, 300)}" if last else ""
            lines.append([*cells, *([error] if errors else [])])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def summary(answers: Answers, size: Size) -> str:
    """A line for each part: how many items are well, which are not and why, and how many are left."""
    lines = []
    for name, part in PARTS.items():
        items = part.items(size)
        known = [answers.of[name, item] for item in items if (name, item) in answers.of]
        bad = [answer for answer in known if answer.error and not answer.refused]
        counts = [f"{len(known) - sum(bool(each.error) for each in known)} of {len(items)} without an error"]
        counts += [f"{refused} refused"] if (refused := sum(each.refused for each in known)) else []
        counts += [f"{len(items) - len(known)} not asked yet"] if len(known) < len(items) else []
        lines.append(f"- {name}: {', '.join(counts)}")
        kinds: dict[str, list[str]] = {}
        for answer in bad:
            kinds.setdefault(one_line(answer.error, 160), []).append(answer.item)
        lines += [f"  - {', '.join(whose)}: {kind}" for kind, whose in kinds.items()]
    return "\n".join(lines)


def parsed() -> argparse.Namespace:
    shares = "\n".join(f"    {name:11} {part.question}" for name, part in PARTS.items())
    about = (__doc__ or "").replace("PARTS", shares, 1)
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help="ask these again (default: all that is left)"
    )
    parser.add_argument("--only", nargs="+", metavar="ITEM", help="only these items of the parts")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="the length of the call (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, help="the folder of gpu.md, of the answers and of the log")
    parser.add_argument("--jobs", type=int, help="laws at a time (default: half of the cores)")
    parser.add_argument(
        "--keep", action="store_true", help="keep answers of other commits, which the page names"
    )
    parser.add_argument("--quick", action="store_true", help="tiny graphs, to see whether everything works")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    usual = Path("build", "gpu") if options.quick else Path("benchmarks", "results")
    try:
        select_device(Engine.NCCL, 0)
        options.out = (options.out or find_root() / usual).absolute()
    except UserError as error:
        parser.error(str(error))
    size = QUICK if options.quick else FULL
    known = {item for name in options.parts or PARTS for item in PARTS[name].items(size)}
    if unknown := set(options.only or ()) - known:
        parser.error(f"no item {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    return options


def main() -> None:
    options = parsed()
    size = (QUICK if options.quick else FULL)._replace(folder=options.out)
    if options.child:
        (name,) = options.parts
        answer_items(PARTS[name], options.only, size, options.child)
        return
    root, folder = find_root(), options.out
    folder.mkdir(parents=True, exist_ok=True)
    facts = collect_provenance(root)
    version = version_of_code(root, facts["commit"])
    about = describe(facts, version, {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")})
    machine = f"{gpu_name()}, torch {torch.__version__}{', quick' if options.quick else ''}"
    answers = Answers(folder / "gpu.answers.part", machine, version, options.keep)
    wanted = {}
    for name in options.parts or PARTS:
        items = [item for item in PARTS[name].items(size) if not options.only or item in options.only]
        wanted[name] = items if options.parts else answers.left(name, items)
    try:
        ask_all(wanted, answers, options)
    finally:
        write_text(folder / "gpu.md", page(answers, size, about))
    for name in options.parts or PARTS:
        known = [answers.of[name, item] for item in PARTS[name].items(size) if (name, item) in answers.of]
        print(f"\n{name}: {PARTS[name].question}\n\n{table(PARTS[name], known)}", end="")
    print(f"\n{summary(answers, size)}\n\n{folder / 'gpu.md'}")
    left = sum(len(answers.left(name, part.items(size))) for name, part in PARTS.items())
    print(f"{left} items are left: the same command goes on with them." if left else "Nothing is left.")


if __name__ == "__main__":
    main()
