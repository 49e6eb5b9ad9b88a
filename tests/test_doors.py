"""Whatever comes through a door of the harness is accepted, or refused in one clear line; it leaves nothing behind.

The doors: specs, plans, experiments, cards of machines and datasets, the site, options, and the files of an import.
"""

import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

import harness.launch.series
from harness import registry
from harness.cli import main
from harness.sources import AnySource, Rest
from harness.store.build import open_dataset
from harness.store.choice import DatasetChoice
from harness.store.imported import Brought, _source
from harness.store.work import Work

ROOT = Path(__file__).parents[1]
QUICK, LONG = 25, 400
ONE_LINE = 1500
"""Characters of a refusal, at most."""


class Said(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project of few cards, whose runs come to no rank."""
    root = tmp_path_factory.mktemp("project")
    for card in ("datasets/catalog/tiny-sbm.yaml", "machines/local.yaml"):
        (root / card).parent.mkdir(parents=True)
        shutil.copy(ROOT / card, root / card)
    for folder in ("workflows/experiments", "config", "brought", "results/runs"):
        (root / folder).mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_ROOT", str(root))
        for name in ("HARNESS_DATASETS", "HARNESS_RESULTS", "HARNESS_DEBUG"):
            patch.delenv(name, raising=False)
        patch.setattr(harness.launch.series, "series", lambda *_, **__: iter([]))
        yield root


def say(*words: str | Path) -> Said:
    """What a command answers; every refusal is one line."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(word) for word in words])
    said = Said(code, out.getvalue(), err.getvalue())
    assert code in (0, 1, 2), (words, said)
    assert "Traceback" not in said.err, said
    if code == 2:
        assert re.fullmatch(r"harness: [^\n]+\n", said.err), said
        assert len(said.err) < ONE_LINE, said
    return said


def document(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


WRONG = st.sampled_from(
    [
        *(
            None,
            True,
            -1,
            0,
            10**30,
            1 << 63,
            1 << 40,
            float("nan"),
            float("inf"),
            -0.5,
            1e308,
            "",
            "x" * 5000,
        ),
        *(
            "-x",
            "../../etc/passwd",
            ".",
            "a/b",
            "\0",
            "é\u202e",
            [],
            {},
            [[]],
            {"a": {"b": 1}},
            [1, "a", None],
        ),
        *(nested(60), {"kind": "none"}, "1e400", "010"),
    ]
)


@st.composite
def spoiled(draw: st.DrawFn, sound: Any) -> Any:
    """A sound document with one thing in it dropped, added or replaced."""
    if isinstance(sound, dict | list) and sound and draw(st.integers(0, 3)):
        keys = list(sound) if isinstance(sound, dict) else list(range(len(sound)))
        key = draw(st.sampled_from(keys))
        copied = sound.copy()
        if draw(st.integers(0, 4)):
            copied[key] = draw(spoiled(sound[key]))
        else:
            del copied[key]
        return copied
    if isinstance(sound, dict) and draw(st.booleans()):
        return {**sound, draw(st.text(max_size=8)): draw(WRONG)}
    return draw(WRONG)


def written(sound: Any, dump: Callable[[Any], str]) -> st.SearchStrategy[bytes]:
    """The bytes of a file that should hold such a document: spoiled, cut, or of another kind altogether."""
    text = dump(sound).encode()
    return st.one_of(
        spoiled(sound).map(lambda data: dump(data).encode()),
        spoiled(sound).map(lambda data: dump(data).encode()),
        st.binary(max_size=60),
        st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.integers(0, len(text)).map(lambda stop: text[:stop]),
        st.sampled_from(
            [
                *(b"[" * 100_000, b'{"a":' * 100_000, b"\xef\xbb\xbf" + text, text.decode().encode("utf-16")),
                *(b"a: &a [*a]\n", text + b"\n" + text, b"? [1]\n: 2\n", b"a: !!python/name:os.system\n"),
                b"a: " + b"9" * 5000,
            ]
        ),
    )


def dump_yaml(data: Any) -> str:
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


EXPERIMENT = {
    "name": "few",
    "description": "two runs",
    "runs": [
        {
            "strategy": ["serial", {"name": "cagnet-1d", "params": {}}],
            "dataset": "tiny-sbm",
            "ranks": 1,
            "grid": "all",
            "model": {"kind": "gcn", "layers": 2},
            "training": {"epochs": 1, "lr": 0.1},
            "exclude": [{"strategy": "serial", "ranks": 2}],
        }
    ],
    "published": {"machine": "local", "runs": [{"strategy": "serial", "dataset": "tiny-sbm"}]},
}
SITE = {"machine": "local", "account": "a", "sbatch": "--exclusive", "minutes": 5, "job_minutes": 60.0}
MACHINE = {
    "device": "cpu",
    "threads_per_rank": 1,
    "memory_gb": 2,
    "links": {"devices_per_node": 2, "intra_gbs": 3.0, "node_gbs": 1.5, "measured": []},
    "slurm": {"ranks_per_node": 4, "partition": "p", "minutes": 3, "environment": {"A": "b"}},
}


def experiments(root: Path, data: bytes) -> Said:
    path = root / "workflows/experiments/thrown.yaml"
    path.write_bytes(data)
    say("list", "experiments")
    return say("plan", "--experiment", path)


def machines(root: Path, data: bytes) -> Said:
    (root / "machines/thrown.yaml").write_bytes(data)
    say("list", "machines")
    return say(
        "plan", "--strategy", "cagnet-1d", "--ranks", "2", "--dataset", "tiny-sbm", "--set", "machine=thrown"
    )


def datasets(root: Path, data: bytes) -> Said:
    (root / "datasets/catalog/thrown.yaml").write_bytes(data)
    say("list", "datasets")
    return say("data", "info", "thrown")


def sites(root: Path, data: bytes) -> Said:
    (root / "config/site.yaml").write_bytes(data)
    said = say("doctor", "--links", "--ranks", "1")
    read = "links are between two ranks" in said.err  # which comes after the site
    return said._replace(code=0 if read else said.code)


def specs(root: Path, data: bytes) -> Said:
    path = root / "thrown.json"
    path.write_bytes(data)
    return say("run", "--spec", path)


def plans(root: Path, data: bytes) -> Said:
    path = root / "thrown.json"
    path.write_bytes(data)
    said = say("collect", "--plan", path, "--out", root / "tables")
    read = "holds no run of the plan" in said.err
    return said._replace(code=0 if read else said.code)


Door = Callable[[Path, bytes], Said]


@pytest.fixture(scope="module")
def sound(project: Path) -> dict[Door, tuple[Any, Callable[[Any], str]]]:
    """A sound document for every door, and how it is written."""
    path = project / "workflows/experiments/few.yaml"
    path.write_text(dump_yaml(EXPERIMENT))
    planned = say("plan", "--experiment", path, "--json")
    assert planned.code == 0, planned
    plan = json.loads(planned.out)
    card = document(ROOT / "datasets/catalog/tiny-sbm.yaml")
    return {
        experiments: (EXPERIMENT, dump_yaml),
        machines: (MACHINE, dump_yaml),
        datasets: (card, dump_yaml),
        sites: (SITE, dump_yaml),
        specs: (plan["runs"][0]["spec"], json.dumps),
        plans: (plan, json.dumps),
    }


DOORS = (experiments, machines, datasets, sites, specs, plans)
OPTIONS = {
    "plan": ("--strategy", "--ranks", "--dataset", "--set", "--machine", "--experiment"),
    "replay": ("--strategy", "--dataset", "--ranks", "--grid", "--rank", "--set"),
    "run": ("--strategy", "--ranks", "--grid", "--set", "--spec"),
    "data": (
        *("--memory", "--workers", "--shards", "--seed", "--parts", "--partition", "--permutation"),
        "--share",
    ),
}
SOUND = {
    "plan": ["--strategy", "serial"],
    "replay": ["--strategy", "serial", "--dataset", "tiny-sbm"],
    "run": ["--strategy", "serial", "--dataset", "none"],
    "data": ["balance", "tiny-sbm"],
}
VALUES = st.one_of(
    st.sampled_from(
        [
            *(
                "nan",
                "inf",
                "-inf",
                "-1",
                "0",
                "1e-9",
                "1000000000",
                "9" * 5000,
                "1e999",
                "",
                " ",
                "-x",
                "\udcff",
            ),
            *(
                "x=1",
                "model.layers=0",
                "training=3",
                "model.kind.a=1",
                "machine=../../etc/passwd",
                "=",
                "seed=.nan",
            ),
            *(
                "p=1,p=1",
                "0x0",
                "1x1",
                "file:../a",
                "scatter:0/0",
                "scatter:1/2",
                "strategy.params={a: 1}",
                "a.py:B",
            ),
            *(
                "ranks=[",
                "dataset={name: -x}",
                "grid={p: -1}",
                "dataset.permutation=3",
                "grid.p=2",
                "/etc/passwd",
            ),
        ]
    ),
    st.text(max_size=12),
)


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_whatever_a_file_holds(door, project, sound):
    throw(door, project, sound, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_whatever_a_file_holds_at_length(door, project, sound):
    throw(door, project, sound, LONG)


def throw(door, project, sound, examples):
    document, dump = sound[door]
    assert door(project, dump(document).encode()).code == 0

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(data=written(document, dump))
    def thrown(data):
        door(project, data)

    try:
        thrown()
    finally:
        for path in project.rglob("thrown.*"):
            path.unlink()


@settings(max_examples=QUICK, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_an_option_says(project, data):
    verb = data.draw(st.sampled_from(sorted(OPTIONS)))
    option, value = data.draw(st.sampled_from(OPTIONS[verb])), data.draw(VALUES)
    say(verb, *SOUND[verb], f"{option}={value}")


def array(data: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, data, allow_pickle=True)
    return file.getvalue()


N = 6
EDGES = {
    "edges.txt": b"0 1\n1 2\n2 3\n3 4\n4 5\n",
    "edges.csv": b"0,1\n1,2\n2,3\n3,4\n4,5\n",
    "edges.mtx": b"%%MatrixMarket matrix coordinate pattern symmetric\n6 6 5\n2 1\n3 2\n4 3\n5 4\n6 5\n",
    "edges.graph": b"6 5\n2\n1 3\n2 4\n3 5\n4 6\n5\n",
    "edges.triples": b"a\tb\t1\nb\tc\t1\nc\td\t1\nd\te\t1\ne\tf\t1\n",
    "edges.bin": b"HKDT" + np.array([1, 16, 0, N, N, 1, 0, 1], "<u8").tobytes(),
}
DTYPES = st.sampled_from(["f4", "f8", "f2", "i1", "i8", "u8", "?", "c8", "U3", "M8[s]", "O", "V4", "f4,i4"])
SHAPES = st.sampled_from([(), (0,), (N,), (N, 1), (N, 2), (N, 3), (N + 1,), (N, 2, 2), (0, N), (N, 0)])
NUMBERS = st.lists(
    st.sampled_from([0, 1, 2, 3, -1, -5, 0.5, 1 << 40, 1e300, float("nan"), float("inf")]),
    min_size=1,
    max_size=9,
)


@st.composite
def arrays(draw: st.DrawFn) -> bytes:
    """A .npy file of anything, or what is left of one."""
    dtype, shape, numbers = np.dtype(draw(DTYPES)), draw(SHAPES), draw(NUMBERS)
    with np.errstate(all="ignore"):
        drawn = np.resize(np.array(numbers, float), shape)
        kind = dtype.kind
        made = drawn.astype("i8").astype(dtype) if kind in "MU" else np.zeros(shape, dtype)
        made = drawn.astype(dtype) if kind not in "MUV" else made
    data = array(made)
    return data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 5)) == 0 else data


@st.composite
def bitten(draw: st.DrawFn, sound: bytes) -> bytes:
    """A file with some of its bytes replaced, left out or added; or with a byte order mark."""
    start = draw(st.integers(0, len(sound)))
    stop = start + draw(st.integers(0, 4))
    some = st.one_of(
        st.binary(max_size=4), st.sampled_from([b"-1", b"9" * 30, b"1e3", b"\n\n", b"#", b"nan", b" "])
    )
    mark = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    return mark + sound[:start] + draw(some) + sound[stop:]


@st.composite
def imports(draw: st.DrawFn) -> dict[str, tuple[str, bytes]]:
    """Files by the option that names them."""
    name = draw(st.sampled_from(sorted(EDGES)))
    found = {"edges": (name, draw(st.one_of(st.just(EDGES[name]), bitten(EDGES[name]))))}
    for option in ("features", "labels", "split"):
        if draw(st.booleans()):
            text = bitten(b"".join(b"%d\n" % (v % 3) for v in range(N)))
            is_array = draw(st.booleans())
            ending = "npy" if is_array else "csv"
            found[option] = (f"{option}.{ending}", draw(arrays() if is_array else text))
    return found


def listing(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file() or path.name.startswith(".")}


def bring(root: Path, files: dict[str, tuple[str, bytes]], *more: str) -> Said:
    """An import, of which nothing is left if it is refused."""
    options = []
    for option, (name, data) in files.items():
        (root / "brought" / name).write_bytes(data)
        options += [f"--{option}", str(root / "brought" / name)]
    before = listing(root)
    said = say("data", "import", "mine", *options, *more)
    if said.code:
        assert listing(root) == before, said
        assert "card" not in said.err, said
    else:
        shutil.rmtree(said.out.strip())
        (root / "datasets/catalog/mine.yaml").unlink()
    return said


@settings(max_examples=QUICK, suppress_health_check=list(HealthCheck))
@given(files=imports())
def test_whatever_an_import_brings(project, files):
    bring(project, files)


@pytest.mark.slow
@settings(max_examples=LONG, suppress_health_check=list(HealthCheck))
@given(files=imports())
def test_whatever_an_import_brings_at_length(project, files):
    bring(project, files)


FEATURES = np.ones((N, 2))
LABELS = np.arange(N) % 3


def spoilt(sound: np.ndarray, place: Any, value: Any) -> bytes:
    copied = sound.copy()
    copied[place] = value
    return array(copied)


@pytest.mark.parametrize(
    ("files", "more", "said"),
    [
        (
            {"features": spoilt(FEATURES, (4, 1), np.nan)},
            [],
            "--features {} row 5 (vertex 4), column 2: the feature is nan",
        ),
        (
            {"features": spoilt(FEATURES, (0, 0), -np.inf)},
            [],
            "row 1 (vertex 0), column 1: the feature is -inf",
        ),
        (
            {"features": spoilt(FEATURES, (5, 0), 1e39)},
            [],
            "row 6 (vertex 5), column 1: the feature is inf as a float32",
        ),
        ({"labels": spoilt(LABELS, 3, 1 << 40)}, [], "--labels {} vertex 3: the label 1099511627776 is none"),
        ({"labels": spoilt(LABELS, 2, -2)}, [], "--labels {} vertex 2: the label -2 is none"),
        (
            {"labels": array(LABELS)},
            ["--classes", "2"],
            "--labels {} vertex 2: the label 2 is none. Labels are 0 .. 1",
        ),
        ({"labels": array(LABELS + 0.5)}, [], "vertex 0: 0.5 is not an integer"),
        ({"split": array(np.eye(N, 3) + [[1, 0, 0]] > 0)}, [], "--split {} vertex 1: its masks overlap"),
        ({"split": spoilt(LABELS, 1, 4)}, [], "--split {} vertex 1: 4 is no part of a split"),
        ({}, ["--classes", "0"], "argument --classes: 0 is not accepted"),
        ({}, ["--memory", "1e-9"], "argument --memory: 1e-9 is not accepted: a number from 0.015625"),
        ({}, ["--memory", "nan"], "argument --memory: nan is not accepted"),
        ({}, ["--vertices", "3"], "--edges {} line 3: the id 3 is not among 0 .. 2: set --vertices"),
    ],
)
def test_a_refused_import_names_what_was_typed_and_where_it_is_wrong(project, files, more, said):
    named = {option: (f"{option}.npy", data) for option, data in files.items()}
    got = bring(project, {"edges": ("edges.txt", EDGES["edges.txt"]), **named}, *more)
    assert got.code == 2
    option = next(iter(files), "edges")
    name = project / "brought" / (named[option][0] if files else "edges.txt")
    assert said.format(f"{name},") in got.err


def test_masks_and_a_byte_order_mark_are_read(project):
    def splits(split: bytes, mark: bytes) -> list[int]:
        files = {
            "edges": ("edges.txt", mark + b"# from, to\n" + EDGES["edges.txt"]),
            "split": ("split.npy", split),
        }
        for option, (name, data) in files.items():
            (project / "brought" / name).write_bytes(data)
            files[option] = project / "brought" / name
        said = say("data", "import", "mine", *(f"--{option}={path}" for option, path in files.items()))
        assert said.code == 0, said
        store = open_dataset(project, DatasetChoice(name="mine"))
        assert (store.n, store.nnz) == (N, 2 * 5 + N)
        found = store.split(range(N)).tolist()
        shutil.rmtree(said.out.strip())
        (project / "datasets/catalog/mine.yaml").unlink()
        return found

    numbers = np.array([1, 2, 3, 1, 0, 2])
    masks = numbers[:, None] == [1, 2, 3]
    marked = b"\xef\xbb\xbf"
    assert splits(array(masks), marked) == splits(array(numbers), b"") == numbers.tolist()
    assert splits(array(masks.astype(float)), b"") == numbers.tolist()
    assert splits(array(masks[:, 0]), b"") == masks[:, 0].astype(int).tolist()


@pytest.mark.parametrize("name", sorted(set(EDGES) - {"edges.bin"}))
def test_a_byte_order_mark_changes_no_graph(project, name):
    def ends(mark: bytes) -> list[list[int]]:
        path = project / "brought" / name
        path.write_bytes(mark + EDGES[name])
        source = TypeAdapter(AnySource).validate_python(_source(Brought(name="a", edges=path)))
        raw = source.graph(Rest(Path(), 0, 1, 0))
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
        said = say("data", "import", "mine", "--edges", project / "brought/edges.txt")
        if said.code == 0:
            shutil.rmtree(said.out.strip())
            (project / "datasets/catalog/mine.yaml").unlink()
            break
        refused += 1
        assert "No space left on device" in said.err
        assert "Nothing of it was kept" in said.err
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
        patch.setattr(Work, "forget", killed)
        with pytest.raises(Killed):
            say("data", "build", "tiny-sbm")
    assert any(path.name.endswith(".work") for path in folder.iterdir())
    built = Path(say("data", "build", "tiny-sbm").out.strip())
    assert [path.name for path in folder.iterdir()] == [built.name]
    shutil.rmtree(built)


@pytest.mark.parametrize("kind", ["scalar", "mapping", "list"])
def test_what_is_no_experiment_is_named_and_not_quoted(project, kind):
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

    monkeypatch.setattr("harness.cli.listing._list", broken)
    err = io.StringIO()
    with redirect_stderr(err):
        assert main(["list", "machines"]) == 70
    assert re.fullmatch(
        r"harness: An unforeseen error: TypeError: a defect of two lines\. [^\n]+\n", err.getvalue()
    )
    (log,) = (project / "results/logs/errors").iterdir()
    assert str(log) in err.getvalue()
    assert "Traceback" in log.read_text() and "in broken" in log.read_text()
    shutil.move(project / "results", project / "aside")
    (project / "results").write_text("in the way")
    with redirect_stderr(err):
        assert main(["list", "machines"]) == 70
    named = re.findall(r"The traceback is in (\S+\.log):", err.getvalue())[-1]
    assert not named.startswith(str(project))
    assert "Traceback" in Path(named).read_text()
    shutil.rmtree(Path(named).parent)
    (project / "results").unlink()
    shutil.move(project / "aside", project / "results")
    monkeypatch.setenv("HARNESS_DEBUG", "1")
    with pytest.raises(TypeError):
        main(["list", "machines"])


def test_an_answer_that_nobody_reads_to_its_end_is_no_error(project):
    command = [sys.executable, "-m", "harness", "data", "info", "tiny-sbm"]
    done = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    assert done.stdout is not None and done.stderr is not None
    done.stdout.close()
    assert done.stderr.read() == b""
    done.stderr.close()
    assert done.wait() == 1


PLUGIN = """
from harness.strategy import Strategy
from strategies.serial import Serial
class Meta(type(Serial)):
    @property
    def promise(cls):
        raise RuntimeError
class Raises(Serial, metaclass=Meta): pass
class Lacks(Strategy):
    refuse = weight = input = output = operators = words = memory = None
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
        ("Raises", "promise raises RuntimeError"),
        ("Lacks", "axes is missing: a tuple of different harness.ledger.AxisName"),
        ("Lacks", "promise is missing: a harness.strategy.Promise (EXACT, ESTIMATOR, APPROXIMATE)"),
        ("Promises", "promise = 'exact' is not accepted: a harness.strategy.Promise"),
        ("Axes", "axes = ['p'] is not accepted"),
        ("Twice", "axes = (<AxisName.P: 'p'>, <AxisName.P: 'p'>) is not accepted"),
        ("Slow", "slowest_first = () is not accepted: a tuple of the same axes, or None"),
        ("Over", "partitioned_over = 3 is not accepted: one of its axes, or None"),
        ("Models", "models = 'gcn' is not accepted: a tuple of gcn, sage, gat"),
        ("Params", "Params = <class 'dict'> is not accepted"),
        ("Named", "name = None is not accepted"),
    ],
)
def test_a_plugin_is_told_what_it_does_not_say_of_itself(project, named, said):
    path = project / "plugin.py"
    path.write_text(PLUGIN)
    for words in (["check"], ["plan", "--strategy"], ["run", "--dataset", "tiny-sbm", "--strategy"]):
        told = say(*words, f"{path}:{named}")
        assert told.code == 2
        assert said in told.err
        assert "docs/add-a-strategy.md" in told.err


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nothing.here", "ModuleNotFoundError: No module named 'nothing', {}, line 1"),
        ("\ndef (", "SyntaxError: invalid syntax"),
        ("import sys\nsys.exit(3)", "SystemExit: 3, {}, line 2"),
        ("1 / 0", "ZeroDivisionError: division by zero, {}, line 1"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_named_with_its_line(project, source, said):
    path = project / "plugin.py"
    path.write_text(source)
    told = say("check", f"{path}:Mine")
    assert told.code == 2
    assert said.format(path) in told.err


def test_a_broken_plugin_keeps_no_other_from_being_listed(project, monkeypatch):
    broken = EntryPoint("broken", "nothing.here:Mine", registry.GROUP)
    points = [*registry.registered(), broken]
    monkeypatch.setattr(registry, "registered", lambda: points)
    listed = say("list", "strategies")
    assert listed.code == 0
    assert "broken" in listed.out and "serial" in listed.out
    rows = json.loads(say("data", "info", "tiny-sbm", "--ranks=1", "--json").out)["needs"]
    needs = {row["strategy"]: row for row in rows}
    assert "cannot be imported" in needs["broken"]["refused"]
    assert needs["serial"]["persistent_bytes"] > 0
