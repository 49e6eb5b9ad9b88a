"""`harness data fetch`, killed anywhere: the next call goes on, and nothing half is trusted, lost or left behind."""

import hashlib
import io
import random
import zipfile

import pytest
import yaml

from tests.kills import Killer

PATH = "/data.example.org/graph.zip"
CARD = {
    "source": {"kind": "npz", "path": "raw/graph.zip", "url": "https://data.example.org/graph.zip"},
    "classes": 5,
    "features": {"kind": "uniform", "width": 4},
    "labels": {"kind": "degree"},
    "split": {"kind": "all"},
}


@pytest.fixture
def data(site):
    """A published archive."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("noise", random.Random(0).randbytes(3_000_000))
    site.files[PATH] = made.getvalue()
    return made.getvalue()


@pytest.fixture
def killer(site, tmp_path):
    """The command, over a project of its own."""
    (tmp_path / "datasets" / "catalog").mkdir(parents=True)
    (tmp_path / "datasets" / "catalog" / "graph.yaml").write_text(yaml.safe_dump(CARD))
    places = {"HARNESS_ROOT": str(tmp_path), "HARNESS_DATASETS": str(tmp_path / "datasets")}
    raw = tmp_path / "datasets" / "raw"
    return Killer(["data", "fetch", "graph"], raw, HARNESS_MIRROR=site.url, **places)


def check_whole(raw, data):
    """An undisturbed fetch leaves these files, and so does every other."""
    assert {path.name: path.read_bytes() for path in raw.iterdir()} == {
        "graph.zip": data,
        "graph.zip.sha256": f"{hashlib.sha256(data).hexdigest()}  graph.zip\n".encode(),
    }


def check_half(raw, data):
    """After a kill what has the file's name is the file, and what has come is its beginning."""
    if (raw / "graph.zip").exists():
        assert (raw / "graph.zip").read_bytes() == data
    if (raw / "graph.zip.part").exists():
        assert data.startswith((raw / "graph.zip.part").read_bytes())


def come(raw):
    """The bytes that are there, under either name."""
    return max(
        (each.stat().st_size for each in raw.glob("graph.zip*") if each.suffix != ".sha256"), default=0
    )


@pytest.mark.long
@pytest.mark.parametrize("kills", [4, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_a_fetch_killed_at_random_goes_on(site, data, killer, tmp_path, kills):
    raw, rng, killed, rounds, resumed = tmp_path / "datasets" / "raw", random.Random(kills), 0, 0, 0
    raw.mkdir()
    while killed < kills:
        rounds += 1
        site.slow, before, had = 1.0, len(site.asked), come(raw)

        def begun(before=before, had=had, bytes_came=rounds % 3 > 0):
            return come(raw) > had if bytes_came else len(site.asked) > before

        killed += killer.kill_at_random(rng, 0.3, begun)
        check_half(raw, data)
        assert come(raw) >= had, "what had come was lost"
        if len(site.asked) > before and had:
            assert site.asked[before] == (PATH, f"bytes={had}-")
            resumed += 1
        if rounds % 6 == 0:  # to its end, and from the beginning again
            site.slow = 0.0
            killer.run()
            check_whole(raw, data)
            for path in raw.iterdir():
                path.unlink()
    site.slow = 0.0
    killer.run()
    check_whole(raw, data)
    assert resumed
    print(
        f"fetch: {killed} kills in {rounds} rounds, {resumed} resumed; the bytes are those of an undisturbed one"
    )


@pytest.mark.slow
def test_a_fetch_killed_at_every_step_goes_on(site, data, killer, tmp_path):
    """Before each change of a file: nothing that has come is asked for again."""
    raw, step, whole = tmp_path / "datasets" / "raw", 0, 0
    raw.mkdir()
    while True:
        step += 1
        killed = killer.kill_at_step(step)
        check_half(raw, data)
        had, before = come(raw), len(site.asked)
        killer.run()
        check_whole(raw, data)
        assert len(site.asked) - before <= (had < len(data)), "what was whole was asked for again"
        whole += killed and had == len(data)
        for path in raw.iterdir():
            path.unlink()
        if not killed:
            break
    assert step > 8
    assert whole > 3, "some kills came after the last byte"
