"""Mutation testing of `harness check`: does a check find a strategy in which one expression is wrong?

A mutant is a strategy with one change in its files: a sign, a factor, an index, a dropped term, an epoch, an axis, or a
condition. Mutants are drawn at random from the changes of expressions that a quick check executes. One that ends with
an error of its own is counted apart: any run would find it.

Verifier (tests/test_mutants.py): known mistakes are found, and the expressions that a check executes are known.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple

from benchmarks.registry import Results, Table, benchmark
from harness.base.documents import read_yaml
from harness.base.errors import UserError
from harness.conformance import Extent
from harness.registry import load_strategy, registered_strategies
from harness.spec.root import find_root

PACKAGE = "harness.strategies"
COMPILED = ("compiled", "triton")
"""Functions with such a decorator cannot say that they were executed."""
NOT_RUN = ("refuse", "published_costs", "describe_first_layer", "__repr__")
"""Methods that compute no number of a training."""
MARK = "mark_executed__"
MARKING = f"""
def {MARK}(value, place, executed=set()):
    import os
    if place not in executed:
        executed.add(place)
        with open(os.environ["HARNESS_EXECUTED"], "a") as file:
            file.write(place + os.linesep)
    return value
"""
Outcome = Literal["found", "error", "survived"]
EQUIVALENTS = Path(__file__).parent / "data" / "equivalent_mutants.yaml"
SWAPPED = {
    "FORWARD": "BACKWARD",
    "BACKWARD": "FORWARD",
    "ROW": "COL",
    "COL": "ROW",
    "X": "Y",
    "Y": "X",
    "step": "step - 1",
    "epoch": "epoch - 1",
}
"""Names, and what replaces them in a mutant."""
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


class Change(NamedTuple):
    """A change of an expression in a file."""

    file: Path
    left_out: frozenset[str]
    """The names of classes that do not change: they describe for a check what the strategy computes."""
    number: int
    """The index of the expression in `list_expressions`."""
    choice: int
    """The index of the mistake in `list_mistakes`."""


class Mutant(NamedTuple):
    """A file of a strategy with one change."""

    file: Path
    line: int
    text: str
    """The line of the file, without indentation."""
    before: str
    after: str
    source: str
    """The text of the changed file."""


class Checked(NamedTuple):
    """What a check said of a mutant."""

    outcome: Outcome
    cases: int = 0
    """The number of cases that it tried; the last one found the mutant."""


class Equivalent(NamedTuple):
    """A mutant that is called equivalent: no check can tell it from the strategy."""

    file: Path
    text: str
    before: str
    after: str
    why: str
    strategies: Sequence[str] = ()
    """The strategies that it equals; empty for all that use the file."""

    def describes(self, name: str, mutant: Mutant) -> bool:
        """Whether this is the mutant of a strategy."""
        is_same = self[:4] == (mutant.file, mutant.text, mutant.before, mutant.after)
        return is_same and (name in self.strategies or not self.strategies)


@benchmark
def mutants(
    only: tuple[str, ...] = (), count: int = 5, seed: int = 1, full: bool = False, timeout: int = 1800
) -> Results:
    """Change one expression of a strategy at a time, and check it: how many of the mistakes are found?

    Args:
        count: mutants of each strategy
        seed: of the choice of mutants
        full: also check in full what a quick check does not find, and what is not called equivalent
        timeout: seconds after which a check counts as ended by an error
    """
    names = [each.name for each in registered_strategies() if each.value.startswith(PACKAGE)]
    with copied_package() as copy:
        survivors, total = list[tuple[str, Mutant]](), Counter[Outcome]()
        yield Table(
            "strategy", "mutants", "ended by an error", "found", "survived", "found of the others:.0%"
        )
        tried = Counter[int]()
        for name in only or names:
            outcomes = Counter[Outcome]()
            for mutant, (outcome, cases) in try_mutants(name, count, seed, copy, timeout):
                outcomes[outcome] += 1
                if outcome == "found":
                    tried[cases] += 1
                elif outcome == "survived":
                    survivors.append((name, mutant))
            total += outcomes
            yield name, *describe_outcomes(outcomes)
        yield "all", *describe_outcomes(total)
        if tried:
            yield Table("cases tried", "mutants found", title="Cases until a mutant is found")
            yield from sorted(tried.items())
        if not survivors:
            return
        equivalents, in_full = read_equivalents(), Counter[str]()
        yield Table(
            "strategy", "place", "before", "after", "full check", title="Mutants that survived a quick check"
        )
        for name, mutant in survivors:
            in_full_check = next(
                (f"equivalent: {each.why}" for each in equivalents if each.describes(name, mutant)), ""
            )
            if full and not in_full_check:
                in_full_check = check_mutant(name, mutant, copy, "full", timeout).outcome
                in_full[in_full_check] += 1
            place = f"{mutant.file.name}:{mutant.line}"
            yield name, place, f"`{mutant.before}`", f"`{mutant.after}`", in_full_check
    if full and (others := total["found"] + total["survived"] - in_full["error"]):
        share = (total["found"] + in_full["found"]) / others
        yield f"The full check finds {share:.0%} of the mutants that do not end by an error."


def describe_outcomes(outcomes: Mapping[Outcome, int]) -> tuple[int | float | None, ...]:
    """Return the cells of a row after its name."""
    found, ended, survived = (outcomes.get(each, 0) for each in ("found", "error", "survived"))
    share = found / (found + survived) if found + survived else None
    return sum(outcomes.values()), ended, found, survived, share


def read_equivalents() -> list[Equivalent]:
    """Return the mutants that are called equivalent."""
    return [
        Equivalent(find_root() / "harness" / "strategies" / file, **each)
        for file, mutants in read_yaml(EQUIVALENTS, EQUIVALENTS.name).items()
        for each in mutants
    ]


@contextmanager
def copied_package() -> Iterator[Path]:
    """A temporary copy of the package `harness`, whose files may be changed."""
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary, "harness")
        shutil.copytree(find_root() / "harness", copy, ignore=shutil.ignore_patterns("__pycache__"))
        yield copy


def try_mutants(
    name: str, count: int, seed: int, copy: Path, timeout: int
) -> Iterator[tuple[Mutant, Checked]]:
    """Check `count` mutants of a strategy, or all."""
    changes = list_changes(name)
    Random(f"{seed} {name}").shuffle(changes)
    executed = find_executed(name, copy, timeout)
    chosen = [each for each in changes if (each.file, each.number) in executed][:count]
    for mutant in map(make_mutant, chosen):
        yield mutant, check_mutant(name, mutant, copy, "quick", timeout)


def find_executed(name: str, copy: Path, timeout: int) -> set[tuple[Path, int]]:
    """Return the files and numbers of the expressions that a quick check of the unchanged strategy executes."""
    package, noted = find_root() / "harness", copy.parent / "executed"
    changes = list_changes(name)
    left_out = next(each.left_out for each in changes)
    files = sorted({each.file for each in changes})
    sources = {copy / file.relative_to(package): mark_expressions(file, left_out) for file in files}
    noted.write_text("")
    done = _run_check(name, sources, copy, "quick", timeout, HARNESS_EXECUTED=str(noted))
    if done is None or done.returncode not in (0, 1):
        raise UserError(
            f"The check of {name} fails without a change: {done.stderr if done else 'it takes too long'}."
        )
    if broken := list_broken(done):
        raise UserError(f"The check of {name} fails without a change: {broken[0]['detail']}.")
    places = (line.rpartition(":") for line in noted.read_text(encoding="utf-8").split())
    return {(Path(file), int(number)) for file, _, number in places}


def check_mutant(name: str, mutant: Mutant, copy: Path, extent: Extent, timeout: int) -> Checked:
    """Check a mutant in a process of its own, with a copy of the package in which one file is changed."""
    sources = {copy / mutant.file.relative_to(find_root() / "harness"): mutant.source}
    done = _run_check(name, sources, copy, extent, timeout)
    if done is None or done.returncode not in (0, 1):
        return Checked("error")
    cases = len({finding["case"] for finding in json.loads(done.stdout)["findings"]})
    broken = list_broken(done)
    if not broken:
        return Checked("survived", cases)
    return Checked("found" if any(not finding["trace"] for finding in broken) else "error", cases)


def list_broken(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Return the findings of a check that do not hold."""
    return [finding for finding in json.loads(done.stdout)["findings"] if not finding["holds"]]


def _run_check(
    name: str, sources: Mapping[Path, str], copy: Path, extent: Extent, timeout: int, **variables: str
) -> subprocess.CompletedProcess[str] | None:
    """Check a strategy until something fails, with changed files in a copy of the package; None if it took too long."""
    originals = {file: file.read_text(encoding="utf-8") for file in sources}
    command = [sys.executable, "-m", "harness", "check", name, "--first", "--json"]
    command += [] if extent == "usual" else [f"--{extent}"]
    path = {"PYTHONPATH": f"{copy.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep)}
    environment = os.environ | path | variables
    try:
        for file, source in sources.items():
            file.write_text(source, encoding="utf-8")
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        for file, source in originals.items():
            file.write_text(source, encoding="utf-8")


def list_changes(name: str) -> list[Change]:
    """Return all changes of a strategy, in the order of its files."""
    strategy = load_strategy(name)
    references = [each for each in (strategy.recurrence, strategy.reference_sampler) if each]
    left_out = frozenset(base.__name__ for each in references for base in each.__mro__)
    return [
        Change(file, left_out, number, choice)
        for file in find_files(strategy.__module__)
        for number, node in enumerate(list_expressions(ast.parse(file.read_text(encoding="utf-8")), left_out))
        for choice in range(len(list_mistakes(node)))
    ]


def make_mutant(change: Change) -> Mutant:
    """Make the mutant of a change."""
    text = change.file.read_text(encoding="utf-8")
    tree = ast.parse(text)
    node = list_expressions(tree, change.left_out)[change.number]
    before, after = ast.unparse(node), list_mistakes(node)[change.choice]
    line = text.splitlines()[node.lineno - 1].strip()
    changed = ast.unparse(ast.fix_missing_locations(_Replacement({node: after}).visit(tree)))
    return Mutant(change.file, node.lineno, line, before, ast.unparse(after), changed)


def mark_expressions(file: Path, left_out: Collection[str]) -> str:
    """Return the text of a file in which each expression that a mutant may change notes that it was executed."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    marked = {
        node: ast.Call(ast.Name(MARK, ast.Load()), [node, ast.Constant(f"{file}:{number}")], [])
        for number, node in enumerate(list_expressions(tree, left_out))
        if list_mistakes(node)
    }
    return f"{ast.unparse(ast.fix_missing_locations(_Replacement(marked).visit(tree)))}\n{MARKING}"


def find_files(module: str) -> list[Path]:
    """Return the file of a strategy's module, and those that it imports from the same package, in any depth."""
    package, found, todo = module.rpartition(".")[0], dict[str, Path](), [module]
    while todo:
        current = todo.pop()
        spec = find_spec(current)
        if current in found or spec is None or spec.origin is None:
            continue
        found[current] = Path(spec.origin)
        imported = [
            node.module
            for node in ast.walk(ast.parse(found[current].read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and node.module
        ]
        todo += [each for each in imported if each.startswith(f"{package}.") and package != PACKAGE]
    return sorted(found.values())


def list_expressions(tree: ast.AST, left_out: Collection[str] = ()) -> list[ast.expr]:
    """Return the expressions in functions, without annotations, defaults, assertions and errors."""
    found = list[ast.expr]()
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.FunctionDef):
            if not (isinstance(node, ast.ClassDef) and node.name in left_out):
                found += list_expressions(node, left_out)
            continue
        decorators = " ".join(map(ast.unparse, node.decorator_list))
        if node.name not in NOT_RUN and not any(word in decorators for word in COMPILED):
            found += [each for statement in node.body for each in _walk_statement(statement)]
    return found


def _walk_statement(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.pattern):
        return
    if isinstance(node, ast.expr):
        yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk_statement(child)


def list_mistakes(node: ast.expr) -> list[ast.expr]:
    """Return the replacements of an expression, each with one mistake."""
    mistakes = list[ast.expr]()
    match node:
        case ast.BinOp(left, ast.Add() | ast.Sub() as sign, right):
            other = ast.Sub() if isinstance(sign, ast.Add) else ast.Add()
            mistakes = [ast.BinOp(deepcopy(left), other, deepcopy(right)), deepcopy(left)]
        case (
            ast.BinOp(kept, ast.Mult() | ast.Div() | ast.FloorDiv() | ast.Mod(), _)
            | ast.BoolOp(_, [kept, *_])
            | ast.UnaryOp(ast.USub() | ast.Not(), kept)
            | ast.Attribute(kept, "T", ast.Load())
        ):
            mistakes = [deepcopy(kept)]
        case ast.Compare(left, [comparison], [right]) if type(comparison) in COMPARISONS:
            mistakes = [ast.Compare(deepcopy(left), [COMPARISONS[type(comparison)]()], [deepcopy(right)])]
        case ast.IfExp(_, body, other):
            mistakes = [deepcopy(body), deepcopy(other)]
        case ast.Constant(bool() | int() | float() as value):
            mistakes = [ast.Constant(not value if value is True or value is False else value + 1)]
        case ast.Attribute(_, name, ast.Load()) | ast.Name(name, ast.Load()) if name in SWAPPED:
            mistakes = [ast.parse(ast.unparse(node).removesuffix(name) + SWAPPED[name], mode="eval").body]
    return mistakes


class _Replacement(ast.NodeTransformer):
    """Puts nodes into the places of others, after what is inside these."""

    def __init__(self, replaced: Mapping[ast.expr, ast.expr]) -> None:
        self._replaced = replaced

    def visit(self, node: ast.AST) -> ast.AST:
        node = self.generic_visit(node)
        return self._replaced.get(node, node) if isinstance(node, ast.expr) else node
