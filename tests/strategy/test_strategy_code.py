"""The code of a strategy is hashed: all Python files of its package, without importing it."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from harness import registry
from harness.registry import hash_strategy_code, is_built_in


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an installed plugin with a package `hashed_plugin` and a module `hashed_module`."""
    package = tmp_path / "hashed_plugin"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/__init__.py", "inner/mine.py"):
        (package / name).write_text("raise SystemExit('imported')\n")
    (tmp_path / "hashed_module.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    points = [
        *registry.registered_strategies(),
        EntryPoint("mine", "hashed_plugin.inner.mine:Mine", registry.GROUP),
        EntryPoint("single", "hashed_module:Mine", registry.GROUP),
        EntryPoint("gone", "hashed_nowhere:Mine", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "registered_strategies", lambda: points)
    return tmp_path


def test_all_built_in_strategies_have_the_code_of_one_package() -> None:
    code = hash_strategy_code("serial")
    assert len(code) == 64
    assert hash_strategy_code("graphsage") == code
    assert is_built_in("serial")


def test_every_python_file_of_a_plugin_counts(plugin: Path) -> None:
    found = [hash_strategy_code("mine")]
    (plugin / "hashed_plugin" / "inner" / "mine.py").write_text("pass\n")
    found.append(hash_strategy_code("mine"))
    (plugin / "hashed_plugin" / "helper.py").write_text("pass\n")
    found.append(hash_strategy_code("mine"))
    (plugin / "hashed_plugin" / "helper.py").rename(plugin / "hashed_plugin" / "other.py")
    found.append(hash_strategy_code("mine"))
    assert len(set(found)) == 4
    (plugin / "hashed_plugin" / "notes.txt").write_text("no code")
    (plugin / "hashed_module.py").write_text("pass\n")
    assert hash_strategy_code("mine") == found[-1]
    assert not is_built_in("mine")
    assert not {"hashed_plugin", "hashed_module"} & set(sys.modules)


def test_a_single_module_and_a_file_count_by_themselves(plugin: Path) -> None:
    file = plugin / "hashed_module.py"
    assert hash_strategy_code("single") == hash_strategy_code(f"{file}:Mine") != ""
    before = hash_strategy_code("single")
    (plugin / "hashed_plugin" / "__init__.py").write_text("pass\n")
    assert hash_strategy_code("single") == before
    file.write_text("pass\n")
    assert hash_strategy_code("single") == hash_strategy_code(f"{file}:Mine") != before
    assert not is_built_in(f"{file}:Mine")


@pytest.mark.parametrize("name", ["gone", "no-such-strategy", "no/such/file.py:Mine"])
def test_code_that_is_not_here_has_no_hash(name: str, plugin: Path) -> None:
    assert hash_strategy_code(name) == ""
