"""Refusals name what was typed and where it is wrong, and leave nothing behind."""

import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stderr
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import registry
from harness.base.errors import UserError
from harness.cli import main
from harness.experiment.known_graph import look_up_graph
from harness.experiment.requests import admit_on_all_grids
from harness.graph.builders.staging import StagingFolder
from harness.graph.sources import ReadOptions, make_source
from harness.graph.store.datasets import open_dataset
from harness.graph.store.graph_import import ImportRequest, _make_source_fields
from harness.spec.dataset import DatasetChoice
from tests.untrusted.command import EDGES, ROOT, N, array, listing, say


def test_masks_and_a_byte_order_mark_are_read(project):
    def splits(split: bytes, mark: bytes) -> list[int]:
        files = {
            "edges": ("edges.txt", mark + b"# from, to\n" + EDGES["edges.txt"]),
            "split": ("split.npy", split),
        }
        for option, (name, data) in files.items():
            (project / "brought" / name).write_bytes(data)
            files[option] = project / "brought" / name
        said = say(
            "data", "import", "mine", *(f"--{option}={path}" for option, path in files.items()), "--json"
        )
        assert said.code == 0, said
        store = open_dataset(project, DatasetChoice(name="mine"))
        assert (store.n, store.nnz) == (N, 2 * 5 + N)
        found = store.split(range(N)).tolist()
        shutil.rmtree(json.loads(said.out)["store"])
        (project / "datasets/imported/mine.yaml").unlink()
        return found

    numbers = np.array([1, 2, 3, 1, 0, 2])
    masks = numbers[:, None] == [1, 2, 3]
    marked = b"\xef\xbb\xbf"
    assert splits(array(masks), marked) == splits(array(numbers), b"") == numbers.tolist()
    assert splits(array(masks.astype(float)), b"") == numbers.tolist()
    assert splits(array(masks[:, 0]), b"") == masks[:, 0].astype(int).tolist()


@pytest.mark.parametrize("name", sorted(EDGES))
def test_a_byte_order_mark_changes_no_graph(project, name):
    def ends(mark: bytes) -> list[list[int]]:
        path = project / "brought" / name
        path.write_bytes(mark + EDGES[name])
        source = make_source(_make_source_fields(ImportRequest(name="a", edges=path)))
        raw = source.read_graph(ReadOptions(Path(), 0, 1, 0))
        return [raw.source.tolist(), raw.target.tolist()]

    assert ends(b"\xef\xbb\xbf") == ends(b"")


def test_an_import_that_meets_a_full_disk_leaves_nothing(project, monkeypatch):
    """The disk takes so many files and no more; wherever it ends, what is said to be gone is gone."""
    original, left = Path.open, [0]

    def full(path: Path, mode: str = "r", *rest: Any, **named: Any) -> Any:
        if "w" in mode and path.is_relative_to(project):
            left[0] -= 1
            if left[0] < 0:
                original(path, mode, *rest, **named).close()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return original(path, mode, *rest, **named)

    (project / "brought/edges.txt").write_bytes(EDGES["edges.txt"])
    monkeypatch.setattr(Path, "open", full)
    before, refused = listing(project), 0
    for most in (0, 1, 2, 5, 20, 40, 60, 80, 90, 100, 110, 120, 130, 1000):
        left[0] = most
        said = say("data", "import", "mine", "--edges", project / "brought/edges.txt", "--json")
        if said.code == 0:
            shutil.rmtree(json.loads(said.out)["store"])
            (project / "datasets/imported/mine.yaml").unlink()
            break
        refused += 1
        assert os.strerror(errno.ENOSPC) in said.err
        assert listing(project) == before
    assert refused > 4
    assert said.code == 0, "the disk was never large enough"


def test_a_build_that_was_killed_after_its_seal_leaves_no_work(project, monkeypatch):
    class Killed(BaseException):
        """What no builder catches."""

    def killed(_: object) -> None:
        raise Killed

    folder = project / "datasets/store"
    with monkeypatch.context() as patch:
        patch.setattr(StagingFolder, "discard", killed)
        with pytest.raises(Killed):
            say("data", "build", "tiny-sbm")
    assert any(path.name.endswith(".work") for path in folder.iterdir())
    built = Path(json.loads(say("data", "build", "tiny-sbm", "--json").out)["stores"][0]["folder"])
    assert [path.name for path in folder.iterdir()] == [built.name]
    shutil.rmtree(built)


@pytest.mark.parametrize("kind", ["scalar", "mapping", "list"])
def test_invalid_experiment_is_named_and_not_quoted(project, kind):
    secret = "hunter2-is-the-word"
    text = {
        "scalar": f"root:x:0:{secret}:\nbin:x:1\n",
        "mapping": f"user: {secret}\n",
        "list": f"- {secret}\n",
    }
    path = project / "thrown.yaml"
    path.write_text(text[kind])
    for words in (["plan", "--experiment", path], ["run", "--spec", path], ["collect", "--plan", path]):
        said = say(*words)
        assert said.code == 2
        assert "thrown.yaml" in said.err
        assert secret not in said.err
    path.unlink()


def test_an_unforeseen_error_is_one_line_and_a_log(project, monkeypatch):
    def broken(*_: object) -> int:
        raise TypeError("a defect\nof two lines")

    monkeypatch.setattr("harness.cli.commands.listing._list_cards", broken)
    err = io.StringIO()
    with redirect_stderr(err):
        assert main(["list", "machines"]) == 70
    assert re.fullmatch(r"harness: [^\n]+TypeError: a defect of two lines[^\n]+\n", err.getvalue())
    (log,) = (project / "results/logs/errors").iterdir()
    assert str(log) in err.getvalue()
    assert "Traceback" in log.read_text() and "in broken" in log.read_text()
    shutil.move(project / "results", project / "aside")
    (project / "results").write_text("in the way")
    with redirect_stderr(err):
        assert main(["list", "machines"]) == 70
    named = re.findall(r"\S+\.log", err.getvalue())[-1]
    assert not named.startswith(str(project))
    assert "Traceback" in Path(named).read_text()
    shutil.rmtree(Path(named).parent)
    (project / "results").unlink()
    shutil.move(project / "aside", project / "results")
    monkeypatch.setenv("HARNESS_DEBUG", "1")
    with pytest.raises(TypeError):
        main(["list", "machines"])


def test_closed_output_pipe_is_not_an_error(project):
    command = [sys.executable, "-m", "harness", "data", "info", "tiny-sbm"]
    done = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    assert done.stdout is not None and done.stderr is not None
    done.stdout.close()
    assert done.stderr.read() == b""
    done.stderr.close()
    assert done.wait() == 1


PLUGIN = """
from harness.strategy import Strategy
from harness.strategies.serial import Serial
class Meta(type(Serial)):
    @property
    def promise(cls):
        raise RuntimeError
class Raises(Serial, metaclass=Meta): pass
class Lacks(Strategy):
    refuse = weight = input = output = operators = words = memory = None
class Nothing(Strategy): pass
class Promises(Serial): promise = "exact"
class Axes(Serial): axes = ["p"]
class Twice(Serial): axes = Serial.axes * 2
class Slow(Serial): slowest_first = ()
class Over(Serial): partitioned_over = 3
class Models(Serial): models = "gcn"
class Params(Serial): Params = dict
class Named(Serial): name = None
"""


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("Raises", ["promise", "RuntimeError"]),
        ("Lacks", ["axes", "harness.ledger.AxisName", "promise", "EXACT, ESTIMATOR, APPROXIMATE"]),
        ("Nothing", ["words", "name", "promise"]),
        ("Promises", ["promise = 'exact'", "harness.strategy.Promise"]),
        ("Axes", ["axes = ['p']"]),
        ("Twice", ["axes = (<AxisName.P: 'p'>, <AxisName.P: 'p'>)"]),
        ("Slow", ["slowest_first = ()"]),
        ("Over", ["partitioned_over = 3"]),
        ("Models", ["models = 'gcn'", "gcn, sage, gat"]),
        ("Params", ["Params = <class 'dict'>"]),
        ("Named", ["name = None"]),
    ],
)
def test_plugin_error_names_the_missing_attributes(project, named, said):
    path = project / "plugin.py"
    path.write_text(PLUGIN)
    for words in (
        ["check"],
        ["words", "--replay", "--dataset", "tiny-sbm", "--strategy"],
        ["run", "--dataset", "tiny-sbm", "--strategy"],
    ):
        told = say(*words, f"{path}:{named}")
        assert told.code == 2
        assert all(word in told.err for word in [*said, "docs/tutorials/add-a-strategy.md"])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nothing.here", "ModuleNotFoundError.*line 1"),
        ("\ndef (", "SyntaxError"),
        ("import sys\nsys.exit(3)", "SystemExit: 3.*line 2"),
        ("1 / 0", "ZeroDivisionError.*line 1"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_named_with_its_line(project, source, said):
    path = project / "plugin.py"
    path.write_text(source)
    told = say("check", f"{path}:Mine")
    assert told.code == 2
    assert str(path) in told.err and re.search(said, told.err)


def test_a_broken_plugin_keeps_no_other_from_being_listed(project, monkeypatch):
    broken = EntryPoint("broken", "nothing.here:Mine", registry.GROUP)
    points = [*registry.registered_strategies(), broken]
    monkeypatch.setattr(registry, "registered_strategies", lambda: points)
    listed = say("list", "strategies")
    assert listed.code == 0
    assert "broken" in listed.out and "serial" in listed.out
    request = {"dataset": {"name": "tiny-sbm"}, "ranks": 1}
    reason = admit_on_all_grids(project, "broken", request, partial(look_up_graph, project), "here").reason
    assert "nothing" in reason


@pytest.mark.parametrize("name", ["__proto__", "_mine", "two words", "<b>"])
def test_a_plugin_with_a_name_that_pages_cannot_show_is_refused(monkeypatch, name):
    points = [*registry.registered_strategies(), EntryPoint(name, "mine.plugin:Mine", registry.GROUP)]
    monkeypatch.setattr(registry, "registered_strategies", lambda: points)
    with pytest.raises(UserError, match=r"mine\.plugin:Mine"):
        registry.load_strategy(name)
