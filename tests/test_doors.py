"""Whatever comes through a door of the harness is accepted, or refused in one clear line; it leaves nothing behind.

The doors: specs, plans, experiments, cards of machines and datasets, the site, options, and the files of an import.
"""

import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import harness.launch.series
from harness.cli import main

ROOT = Path(__file__).parents[1]
QUICK, LONG = 25, 1500
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
    for folder in ("workflows/experiments", "config", "brought"):
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


def experiments(root: Path, data: bytes) -> None:
    path = root / "workflows/experiments/thrown.yaml"
    path.write_bytes(data)
    say("plan", "--experiment", path)
    say("list", "experiments")


def machines(root: Path, data: bytes) -> None:
    (root / "machines/thrown.yaml").write_bytes(data)
    say("plan", "--strategy", "cagnet-1d", "--ranks", "2", "--dataset", "tiny-sbm", "--set", "machine=thrown")
    say("list", "machines")


def datasets(root: Path, data: bytes) -> None:
    (root / "datasets/catalog/thrown.yaml").write_bytes(data)
    say("data", "info", "thrown")
    say("list", "datasets")


def sites(root: Path, data: bytes) -> None:
    (root / "config/site.yaml").write_bytes(data)
    say("doctor", "--links", "--ranks", "1")  # refused for the one rank, after the site was read


def specs(root: Path, data: bytes) -> None:
    path = root / "thrown.json"
    path.write_bytes(data)
    say("run", "--spec", path)


def plans(root: Path, data: bytes) -> None:
    path = root / "thrown.json"
    path.write_bytes(data)
    say("collect", "--plan", path, "--runs", root / "runs", "--out", root / "tables")


@pytest.fixture(scope="module")
def sound(project: Path) -> dict[Callable[[Path, bytes], None], tuple[Any, Callable[[Any], str]]]:
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
    door(project, dump(document).encode())

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
