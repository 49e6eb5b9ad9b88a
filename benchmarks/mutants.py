"""Mutation testing of `harness check`: does a check find a strategy in which one expression is wrong?

A mutant is a strategy with one change in its files: a sign, a factor, an index, a dropped term, an epoch, an axis, or a
condition. Mutants are drawn at random; those that no rank and no formula executes are drawn again. A mutant that ends
with an error of its own is counted apart: any run would find it.

Verifier (tests/test_mutants.py): known mistakes are found, and a change that changes nothing is not.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple

from benchmarks.registry import Results, Table, benchmark
from harness.conformance import Extent
from harness.registry import load_strategy, registered_strategies
from harness.spec.root import find_root

PACKAGE = "harness.strategies"
COMPILED = ("njit", "jit", "vectorize", "compile_loops", "triton")
"""Functions with such a decorator cannot say that they were executed."""
NOT_RUN = ("refuse", "published_costs", "describe_first_layer", "__repr__")
"""Methods that compute no number of a training."""
MARK = "mark_executed__"
HEAD = f"""
def {MARK}(value):
    import os
    open(os.environ["HARNESS_MUTANT"], "a").close()
    return value
"""
Outcome = Literal["found", "error", "survived", "not executed"]
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
    before: str
    after: str
    source: str
    """The text of the changed file."""


@benchmark
def mutants(
    only: tuple[str, ...] = (), count: int = 6, seed: int = 1, extent: Extent = "quick", timeout: int = 300
) -> Results:
    """Change one expression of a strategy at a time, and check it: how many of the mistakes are found?

    Args:
        count: mutants of each strategy that a check executes
        seed: of the choice of mutants
        extent: of the check
        timeout: seconds after which a check counts as ended by an error
    """
    names = [each.name for each in registered_strategies() if each.value.startswith(PACKAGE)]
    survivors = list[tuple[str, Mutant]]()
    yield Table("strategy", "mutants", "found", "ended by an error", "survived", "found of the others:.0%")
    for name in only or names:
        outcomes = list[Outcome]()
        for mutant, outcome in try_mutants(name, count, seed, extent, timeout):
            outcomes.append(outcome)
            if outcome == "survived":
                survivors.append((name, mutant))
        found, ended, survived = (outcomes.count(each) for each in ("found", "error", "survived"))
        share = found / (found + survived) if found + survived else None
        yield name, len(outcomes), found, ended, survived, share
    if survivors:
        yield Table("strategy", "place", "before", "after", title="Mutants that survived")
    for name, mutant in survivors:
        yield name, f"{mutant.file.name}:{mutant.line}", f"`{mutant.before}`", f"`{mutant.after}`"


def try_mutants(
    name: str, count: int, seed: int, extent: Extent, timeout: int
) -> Iterator[tuple[Mutant, Outcome]]:
    """Check mutants of a strategy until `count` of them were executed, or none is left."""
    candidates = list_changes(name)
    Random(f"{seed} {name}").shuffle(candidates)
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary, "harness")
        shutil.copytree(find_root() / "harness", copy, ignore=shutil.ignore_patterns("__pycache__"))
        for mutant in map(make_mutant, candidates):
            outcome = check_mutant(name, mutant, copy, extent, timeout)
            if outcome != "not executed":
                yield mutant, outcome
                count -= 1
            if not count:
                return


def check_mutant(name: str, mutant: Mutant, copy: Path, extent: Extent, timeout: int) -> Outcome:
    """Check a mutant in a process of its own, with a copy of the package in which one file is changed."""
    changed, marker = copy / mutant.file.relative_to(find_root() / "harness"), copy.parent / "executed"
    original = changed.read_text(encoding="utf-8")
    marker.unlink(missing_ok=True)
    changed.write_text(mutant.source, encoding="utf-8")
    command = [sys.executable, "-m", "harness", "check", name, "--first", "--json"]
    command += [] if extent == "usual" else [f"--{extent}"]
    environment = os.environ | {
        "PYTHONPATH": f"{copy.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep),
        "HARNESS_MUTANT": str(marker),
    }
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return "error"
    finally:
        changed.write_text(original, encoding="utf-8")
    if not marker.exists():
        return "not executed"
    if done.returncode not in (0, 1):
        return "error"
    broken = [finding for finding in json.loads(done.stdout)["findings"] if not finding["holds"]]
    if not broken:
        return "survived"
    return "found" if any(not finding["trace"] for finding in broken) else "error"


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
    tree = ast.parse(change.file.read_text(encoding="utf-8"))
    node = list_expressions(tree, change.left_out)[change.number]
    before, after = ast.unparse(node), list_mistakes(node)[change.choice]
    mutant = Mutant(change.file, node.lineno, before, ast.unparse(after), "")
    _replace(tree, node, after)
    return mutant._replace(source=f"{ast.unparse(ast.fix_missing_locations(tree))}\n{HEAD}")


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
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
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
            | ast.Attribute(kept, "T")
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


def _replace(tree: ast.AST, target: ast.expr, after: ast.expr) -> None:
    """Put an expression into the place of another, in a call that says that it was executed."""
    marked = ast.Call(ast.Name(MARK, ast.Load()), [after], [])
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if value is target:
                setattr(node, name, marked)
            elif isinstance(value, list):
                value[:] = [marked if each is target else each for each in value]
