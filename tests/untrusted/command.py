"""How tests speak to the command line: in this process, and every refusal is one line."""

import io
import json
import re
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.cli import main

ROOT = Path(__file__).parents[2]
ONE_LINE = 1500
"""Characters of a refusal, at most."""


class Said(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


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
}


def listing(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file() or path.name.startswith(".")}


def bring(root: Path, files: dict[str, tuple[str, bytes]], *more: str) -> Said:
    """An import, of which nothing is left if it is refused."""
    options = []
    for option, (name, data) in files.items():
        (root / "brought" / name).write_bytes(data)
        options += [f"--{option}", str(root / "brought" / name)]
    before = listing(root)
    said = say("data", "import", "mine", *options, *more, "--json")
    if said.code:
        assert listing(root) == before, said
        assert "card" not in said.err, said
    else:
        shutil.rmtree(json.loads(said.out)["store"])
        (root / "datasets/imported/mine.yaml").unlink()
    return said
