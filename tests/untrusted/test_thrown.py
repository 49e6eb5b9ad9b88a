"""Whatever a file from others holds is accepted, or refused in one clear line; it leaves nothing behind.

The files: specs, plans, experiments, cards of machines and datasets, the site, options, and the files of an import.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.untrusted.command import EDGES, ROOT, N, Said, array, bring, say

QUICK, LONG = 25, 400


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
CONSTANT = {"value": 3.0, "within": 1.5, "source": "s"}
MACHINE = {
    "device": "cpu",
    "threads_per_rank": 1,
    "memory_gb": 2,
    "links": {
        "devices_per_node": 2,
        **dict.fromkeys(("intra_gbs", "node_gbs", "intra_latency_us", "latency_us"), CONSTANT),
        "all_to_all_share": CONSTANT,
        "measured": [],
    },
    "slurm": {"ranks_per_node": 4, "partition": "p", "minutes": 3, "environment": {"A": "b"}},
}


def experiments(root: Path, data: bytes) -> Said:
    path = root / "workflows/experiments/thrown.yaml"
    path.write_bytes(data)
    say("list", "experiments")
    return say("plan", "--experiment", path)


def machines(root: Path, data: bytes) -> Said:
    (root / "config/machines/thrown.yaml").write_bytes(data)
    say("list", "machines")
    return say(
        "words",
        "--replay",
        "--strategy",
        "cagnet-1d",
        "--ranks",
        "2",
        "--dataset",
        "tiny-sbm",
        "--set",
        "machine=thrown",
    )


def datasets(root: Path, data: bytes) -> Said:
    (root / "datasets/catalog/thrown.yaml").write_bytes(data)
    say("list", "datasets")
    return say("data", "info", "thrown")


def sites(root: Path, data: bytes) -> Said:
    (root / "config/site.yaml").write_bytes(data)
    said = say("doctor", "--links", "--ranks", "1")
    read = "measuring links takes at least 2 ranks" in said.err  # which comes after the site
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


Kind = Callable[[Path, bytes], Said]


@pytest.fixture(scope="module")
def sound(project: Path) -> dict[Kind, tuple[Any, Callable[[Any], str]]]:
    """A sound document of every kind, and how it is written."""
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


KINDS = (experiments, machines, datasets, sites, specs, plans)
OPTIONS = {
    "plan": ("--scale", "--machine", "--out", "--experiment"),
    "words": ("--strategy", "--dataset", "--ranks", "--grid", "--rank", "--set"),
    "run": ("--strategy", "--ranks", "--grid", "--set", "--spec"),
    "data": (
        *("--memory", "--workers", "--shards", "--seed", "--parts", "--partition", "--permutation"),
        "--share",
    ),
}
SOUND = {
    "plan": ["workflows/experiments/few.yaml"],
    "words": ["--replay", "--strategy", "serial", "--dataset", "tiny-sbm"],
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


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_random_file_is_read_or_refused(kind, project, sound):
    throw(kind, project, sound, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_many_random_files_are_read_or_refused(kind, project, sound):
    throw(kind, project, sound, LONG)


def throw(kind, project, sound, examples):
    document, dump = sound[kind]
    assert kind(project, dump(document).encode()).code == 0

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(data=written(document, dump))
    def thrown(data):
        kind(project, data)

    try:
        thrown()
    finally:
        for path in project.rglob("thrown.*"):
            path.unlink()


@settings(max_examples=QUICK, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_option_is_accepted_or_refused(project, data):
    verb = data.draw(st.sampled_from(sorted(OPTIONS)))
    option, value = data.draw(st.sampled_from(OPTIONS[verb])), data.draw(VALUES)
    say(verb, *SOUND[verb], f"{option}={value}")


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


@settings(max_examples=QUICK, suppress_health_check=list(HealthCheck))
@given(files=imports())
def test_random_import_succeeds_or_is_refused(project, files):
    bring(project, files)


@pytest.mark.slow
@settings(max_examples=LONG, suppress_health_check=list(HealthCheck))
@given(files=imports())
def test_many_random_imports_succeed_or_are_refused(project, files):
    bring(project, files)
