"""Mutants of strategies: what is changed in a file, and that a check finds a mistake and nothing else."""

import ast
import shutil
from pathlib import Path

import pytest

from benchmarks.mutants import (
    Outcome,
    check_mutant,
    find_executed,
    find_files,
    list_changes,
    list_expressions,
    list_mistakes,
    make_mutant,
    read_equivalents,
)
from harness.spec.root import find_root

SANCUS = find_root() / "harness" / "strategies" / "sancus.py"


def mistakes_in(text: str) -> set[str]:
    return {ast.unparse(each) for each in list_mistakes(ast.parse(text, mode="eval").body)}


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("a + b", {"a - b", "a"}),
        ("a * b", {"a"}),
        ("a < b", {"a <= b"}),
        ("a and b", {"a"}),
        ("x if a else y", {"x", "y"}),
        ("not a", {"a"}),
        ("True", {"False"}),
        ("3", {"4"}),
        ("self.step", {"self.step - 1"}),
        ("AxisName.ROW", {"AxisName.COL"}),
        ("A.T", {"A"}),
        ("f(a)", set()),
    ],
)
def test_each_kind_of_mistake_stands_in_the_place_of_its_expression(text: str, changed: set[str]) -> None:
    assert mistakes_in(text) == changed


def test_texts_of_errors_annotations_and_compiled_functions_are_left_out() -> None:
    source = """
@compiled(nogil=True)
def loop(a):
    return a + 1

def f(a: Literal[1] = 2) -> Literal[3]:
    assert a + 4
    if a:
        raise ValueError(f"{a + 5}")
    return a + 6

class Reference:
    def g(self):
        return 7
"""
    found = [ast.unparse(each) for each in list_expressions(ast.parse(source), ["Reference"])]
    assert "a + 6" in found and not {"1", "2", "3", "a + 4", "a + 5", "7"} & {*found}


def test_a_strategy_has_its_own_file_and_those_that_it_imports_from_its_package() -> None:
    assert [file.name for file in find_files("harness.strategies.sancus")] == ["sancus.py"]
    halo = {file.name for file in find_files("harness.strategies.halo.adaqp")}
    assert halo == {"adaqp.py", "partition_parallel.py"}


def test_an_attribute_that_is_set_does_not_change() -> None:
    (stored, _) = [node for node in ast.walk(ast.parse("a.T = b.T")) if isinstance(node, ast.Attribute)]
    assert not list_mistakes(stored)


def test_a_mutant_that_is_called_equivalent_is_a_mutant() -> None:
    found = read_equivalents()
    assert found
    for equivalent in found:
        text = equivalent.file.read_text(encoding="utf-8")
        mutants = [
            (line.strip(), ast.unparse(node), ast.unparse(after))
            for node in list_expressions(ast.parse(text))
            for line in [text.splitlines()[node.lineno - 1]]
            for after in list_mistakes(node)
        ]
        assert equivalent[1:4] in mutants and equivalent.why


def test_a_mutant_differs_in_one_expression() -> None:
    changes = list_changes("sancus")
    mutants = [make_mutant(change) for change in changes]
    assert len({mutant.source for mutant in mutants}) == len(mutants) > 50
    assert all(mutant.file == SANCUS for mutant in mutants)


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        ("epoch == 0", "epoch != 0", "found"),
        ("epoch - 1 - j", "epoch - 1 + j", "found"),
    ],
)
def test_a_mistake_in_a_strategy_is_found(tmp_path: Path, before: str, after: str, outcome: Outcome) -> None:
    found = map(make_mutant, list_changes("sancus"))
    mutant = next(each for each in found if (each.before, each.after) == (before, after))
    shutil.copytree(find_root() / "harness", tmp_path / "harness")
    assert check_mutant("sancus", mutant, tmp_path / "harness", "quick", 300).outcome == outcome


@pytest.mark.long
def test_executed_expressions_are_found_and_the_file_is_restored(tmp_path: Path) -> None:
    shutil.copytree(find_root() / "harness", tmp_path / "harness")
    changes = list_changes("sancus")
    executed = find_executed("sancus", tmp_path / "harness", 300)
    lines = {make_mutant(each).text for each in changes if (each.file, each.number) in executed}
    assert 30 < len(executed) < len({each.number for each in changes})
    assert "return epoch == 0 or (turn and self.has_changing_input(layer))" in lines
    assert (tmp_path / "harness" / "strategies" / "sancus.py").read_text() == SANCUS.read_text()
