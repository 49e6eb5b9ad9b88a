"""Malicious names, bytes and texts are refused in one line or handled, and no file is written outside the datasets."""

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.untrusted.command import EDGES, bring, listing, say
from tests.untrusted.test_thrown import LONG, QUICK, bitten, sites

NAMES = st.one_of(
    st.text(min_size=1, max_size=20),
    st.sampled_from(
        [
            *(
                "../x",
                "../../x",
                "/tmp/x",
                "a/../../x",
                ".",
                "..",
                ".hidden",
                "x/y",
                "x\\y",
                "~",
                "$HOME",
                "*",
            ),
            *(
                "-x",
                "--root=/",
                "x\0y",
                "x\ny",
                "é",
                "x" * 101,
                "x" * 5000,
                "\u202e",
                "%s",
                "con",
                "tiny-sbm",
            ),
        ]
    ),
)
ENDINGS = [
    *(".csv", ".txt", ".tsv", ".edges", ".el", "", ".csv.gz", ".txt.gz", ".mtx", ".mtx.gz", ".graph"),
    *(".npz", ".parquet", ".pt", ".triples", ".bin", ".gz", ".csv.gz.gz", ".zip"),
]
TEXTS = st.one_of(
    st.binary(max_size=80),
    st.text(alphabet="0123456789,;\t -+.eE#%\n\r\0\"'é\u2028\ufeff", max_size=80).map(str.encode),
    st.sampled_from(
        [*EDGES.values(), b"PK\3\4", b"PAR1", b"\x80\2}q\0.", b"0,1\n" * 9, b"9" * 400 + b",1\n"]
    ),
    st.sampled_from(sorted(EDGES.values())).flatmap(bitten),
)
YAML = st.text(alphabet="abn:1.-{}[],&*!|>?#%@'\"\\<=~ \n\té\0\u2028", max_size=60).map(str.encode)
SITES = st.one_of(
    YAML,
    YAML.map(lambda text: b"machine: local\n" + text),
    st.sampled_from(
        [
            b"machine: ../../../etc/passwd\n",
            b"machine: /etc/passwd\n",
            b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\nmachine: local\n",
            b"<<: {machine: local}\n",
            b"machine: !!python/object/apply:os.system ['touch thrown.x']\n",
            b"%YAML 9.9\n---\nmachine: local\n",
            b"machine: local\n---\nmachine: local\n",
            b'account: "$(touch thrown.x)"\n',
            b"sbatch: [--wrap, 'touch thrown.x']\n",
            b"machine: |\n  local\n",
            b"minutes: 1_0\n",
            b"minutes: 0x10\n",
            b"minutes: 1:30\n",
        ]
    ),
)
HOSTILE = settings(suppress_health_check=list(HealthCheck))


def outside(root: Path) -> set[Path]:
    """Everything in and next to a project, but for its datasets."""
    inside = {path for path in root.rglob("*") if "datasets" not in path.relative_to(root).parts}
    return inside | set(root.parent.iterdir()) | set(Path.cwd().iterdir())


def import_as(root: Path, name: str) -> None:
    edges = root / "brought" / "edges.csv"
    edges.write_bytes(EDGES["edges.csv"])
    before, files = outside(root), listing(root)
    said = say("data", "import", f"--edges={edges}", "--", name)
    assert outside(root) == before, (name, said)
    if said.code:
        assert listing(root) == files, (name, said)
    else:
        bring_back(root, files)


def bring_back(root: Path, files: set[Path]) -> None:
    """Removes what an import has written."""
    for path in listing(root) - files:
        path.unlink()


def import_bytes(root: Path, ending: str, data: bytes, squeezed: bool) -> None:
    before = outside(root) | {root / "brought" / f"hostile{ending}"}
    said = bring(root, {"edges": (f"hostile{ending}", gzip.compress(data) if squeezed else data)})
    assert outside(root) == before, (ending, data, said)
    (root / "brought" / f"hostile{ending}").unlink()


def read_site(root: Path, data: bytes) -> None:
    before = outside(root) | {root / "config/site.yaml"}
    said = sites(root, data)
    assert outside(root) == before, (data, said)


def throw_names(project: Path, examples: int) -> None:
    @settings(HOSTILE, max_examples=examples)
    @given(name=NAMES)
    def thrown(name: str) -> None:
        import_as(project, name)

    thrown()


def throw_bytes(project: Path, examples: int) -> None:
    @settings(HOSTILE, max_examples=examples)
    @given(ending=st.sampled_from(ENDINGS), data=TEXTS, squeezed=st.booleans())
    def thrown(ending: str, data: bytes, squeezed: bool) -> None:
        import_bytes(project, ending, data, squeezed)

    thrown()


def throw_sites(project: Path, examples: int) -> None:
    @settings(HOSTILE, max_examples=examples)
    @given(data=SITES)
    def thrown(data: bytes) -> None:
        read_site(project, data)

    try:
        thrown()
    finally:
        (project / "config/site.yaml").unlink(missing_ok=True)


@pytest.mark.parametrize("throw", [throw_names, throw_bytes, throw_sites])
@pytest.mark.parametrize("examples", [QUICK, pytest.param(LONG, marks=pytest.mark.slow)])
def test_import_writes_only_into_the_datasets_folder(throw, examples, project) -> None:
    throw(project, examples)
