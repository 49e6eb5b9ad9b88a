"""The help of every verb: examples that the parser takes, keys and parameters with their meanings, and near names."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from harness.base.validation import list_settings
from harness.cli import main
from harness.cli.app import REMOVED, Parsed, make_app, parse
from harness.cli.commands import SECTIONS, VERBS
from harness.cli.commands.request import list_options
from harness.cli.commands.verb import load_verb
from harness.registry import load_strategy, registered_strategies
from harness.spec.spec import Spec, list_spec_keys

MOST_VERBS = 20
"""The verbs on the first screen, at most."""
HEAVY = {"torch", "numpy", "pandas", "pyarrow", "pydantic", "matplotlib", "snakemake", "yaml", "scipy"}


def test_help_of_the_program_imports_no_large_package() -> None:
    """The help stays quick: what it imports is counted instead of timed."""
    code = "import sys; from harness.cli import main; main(['--help']); print(*sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = done.stderr.split()
    assert not HEAVY & set(modules)
    assert len(modules) < 400
    assert all(f" {verb} " in done.stdout for verbs in SECTIONS.values() for verb in verbs)
    assert sum(map(len, SECTIONS.values())) <= MOST_VERBS


def test_verbs_that_the_help_does_not_show_are_named_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    hidden = {verb.split()[0] for verb in VERBS} - {verb for verbs in SECTIONS.values() for verb in verbs}
    assert all(f"harness {verb} --help" in printed for verb in hidden)


@pytest.mark.parametrize(("path", "word"), REMOVED)
def test_removed_verb_or_option_names_its_successor(
    path: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*path.split(), word, "x"]) == 2
    said = capsys.readouterr().err
    assert f"does not have {word} any more" in said
    assert REMOVED[path, word] in said


def test_successors_of_removed_verbs_exist() -> None:
    for successor in REMOVED.values():
        for command in re.findall(r"`harness ([a-z ]+)", successor):
            verb = " ".join(command.split()[:2])
            assert verb in VERBS or verb.split()[0] in VERBS, successor


def test_no_verb_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("Usage: harness COMMAND")


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_explains_every_option(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*verb.split(), "--help"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"Usage: harness {verb}")
    text = " ".join(re.sub("[│╭╰─╮╯*]", " ", printed).split())
    assert VERBS[verb].summary in text
    for option in list_options(load_verb(verb).request):
        assert option.option in text
        assert option.help and option.help.replace("*", " ") in text


def list_examples(verb: str) -> list[str]:
    """The commands in the docstring of a verb."""
    text = load_verb(verb).run.__doc__ or ""
    return [line.strip() for line in text.splitlines() if line.startswith("        harness ")]


@pytest.mark.parametrize("verb", [verb for verb in VERBS if list_examples(verb)])
def test_the_examples_of_a_verb_are_commands(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*verb.split(), "--help"]) == 0
    printed = capsys.readouterr().out
    for example in list_examples(verb):
        assert f"    {example}\n" in printed
        words = shlex.split(example)[1:]
        assert words[: len(verb.split())] == verb.split()
        assert isinstance(parse(make_app(), words), Parsed)


def test_every_key_of_a_spec_has_a_meaning_and_the_values_that_it_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["list", "settings", "--json"]) == 0
    settings = {row["key"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(settings) == list_spec_keys()
    assert all(row["meaning"] for row in settings.values())
    assert settings["model.kind"]["accepts"] == "gcn, sage, gat"
    assert all(bound in settings["model.layers"]["accepts"] for bound in ("1", "4096"))
    assert settings["training.lr"]["default"] == "0.01"


@pytest.mark.parametrize(
    "model", [Spec, *[load_strategy(point.name).Params for point in registered_strategies()]]
)
def test_every_field_has_a_text_below_it(model: type) -> None:
    assert [
        setting.key for setting in list_settings(model) if not setting.meaning and model is not Spec
    ] == []


def test_strategies_are_described_with_paper_promise_axes_and_parameters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["list", "strategies", "-v", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    built_in = {
        point.name for point in registered_strategies() if point.value.startswith("harness.strategies.")
    }
    assert built_in <= rows.keys()
    assert all(rows[name]["paper"] and rows[name]["about"] and rows[name]["axes"] for name in built_in)
    assert rows["cagnet-1.5d"]["axes"] == ["row", "col"]
    (p,) = (row for row in rows["bns-gcn"]["parameters"] if row["key"] == "strategy.params.p")
    assert p["default"] == "1.0"


def test_the_facts_of_a_graph_hold_nothing_that_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    def values(data: object) -> Iterator[object]:
        yield data
        for each in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
            yield from values(each)

    for name in ("tiny-sbm", "reddit", "ogbn-products@1/256"):
        assert main(["data", "info", name, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["name"] == name.replace("/", "-")
        assert not [value for value in values(found) if value in (None, "", {})]
