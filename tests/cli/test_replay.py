"""harness replay: a page for people, the same as JSON for programs."""

import json

import pytest

from harness.cli import main

REPLAY = ["replay", "--strategy", "cagnet-1d", "--dataset", "rmat-17", "--from-card", "--ranks", "64"]


def test_a_page_and_its_data_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*REPLAY, "--rank", "63"]) == 0
    page = capsys.readouterr().out
    assert main([*REPLAY, "--rank", "63", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert "rank 63 of 64" in page
    assert "expected from its card" in page
    assert data["facts"]["exact"] is False
    words = sum(row["words_payload"] for row in data["entries"] if row["op"] == "broadcast")
    n, widths = 131072, [64, 16, 16, 16]
    assert words == n * (sum(widths[:-1]) + sum(widths[1:]))
    assert f"{n * 64:,}" in page
    assert sum(row["words_payload"] for row in data["events"] if row["op"] == "broadcast") == words
    assert data["persistent_bytes"]["X"] == 2048 * 64 * 4
    assert data["peak_bytes"] > sum(data["persistent_bytes"].values()) + 3 * 2048 * 16 * 4
    assert f"at most {data['peak_bytes'] / 1e6:.3g}." in page
