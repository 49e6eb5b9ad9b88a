"""The publishers still have the files of the catalog. Runs only by `make test-network`, and skips without a network."""

import json
import os
import socket
import urllib.request
from pathlib import Path

import pytest

from harness.cli import main
from harness.graph.cards.catalog import list_cards, load_card
from harness.spec.root import find_root

ROOT = find_root(str(Path(__file__).parents[2]))
REMOTES = {
    remote.url: remote
    for name in list_cards(ROOT)
    for remote in load_card(ROOT, name).source.list_remote_files()
}
PUBLISHER = "sparse.tamu.edu"
SECONDS = 60

pytestmark = pytest.mark.skipif(
    os.environ.get("HARNESS_NETWORK_TEST") != "1", reason="asks the publishers: make test-network"
)


@pytest.fixture(autouse=True)
def publishers(monkeypatch):
    """Skips without a network; takes away the mirror, behind which no publisher is asked."""
    monkeypatch.delenv("HARNESS_MIRROR", raising=False)
    if not (os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY")):
        try:
            socket.create_connection((PUBLISHER, 443), SECONDS).close()
        except OSError as error:
            pytest.skip(f"there is no network here: {PUBLISHER} cannot be reached ({error})")


@pytest.mark.timeout(3 * SECONDS)
@pytest.mark.parametrize("url", sorted(REMOTES))
def test_a_file_is_still_published(url):
    """The first byte is asked for. A page in place of a file, as of a sign-in or a quota, is not a file."""
    asked = urllib.request.Request(url, headers={"Range": "bytes=0-0", "User-Agent": "parallel-gnn-harness"})
    with urllib.request.urlopen(asked, timeout=SECONDS) as answer:
        assert answer.status in (200, 206)
        assert "text/html" not in answer.headers.get("Content-Type", "")
        total = answer.headers.get("Content-Range", "").rpartition("/")[2]
        if REMOTES[url].bytes is not None and total.isdecimal():
            assert int(total) == REMOTES[url].bytes


@pytest.mark.timeout(10 * SECONDS)
def test_a_small_matrix_is_imported(tmp_path, monkeypatch, capsys):
    """bcspwr01 has 39 vertices and, its diagonal included, 131 nonzeros."""
    monkeypatch.delenv("HARNESS_DATASETS", raising=False)
    (tmp_path / "datasets" / "catalog").mkdir(parents=True)
    origin = ["--from", "suitesparse:HB/bcspwr01", "--root", str(tmp_path), "--json"]
    assert main(["data", "import", "power", *origin]) == 0
    counts = json.loads(capsys.readouterr().out)["counts"]
    assert (counts["vertices"], counts["nnz_adj"]) == (39, 131)
