"""Calls verbs one after the other where a folder cannot be written, and prints the answer of each as JSON.

`python -m tests.without_room KIND FOLDER`, on standard input the command lines as JSON. The folder is mounted read-only
over itself, or gets an empty disk of a few pages, in a mount namespace that ends with this process.
"""

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

PAGES = 32 << 10
"""The bytes of a full disk."""
CLONE_NEWNS = 0x00020000


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


def make_unwritable(kind: str, folder: Path) -> None:
    """Mounts the folder so that nothing can be written to it, for this process alone."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "no mount namespace")
    mount("--make-rprivate", "/")
    if kind == "read-only":
        mount("--bind", str(folder), str(folder))
        mount("-o", "remount,ro,bind", str(folder))
    else:
        mount("-t", "tmpfs", "-o", f"size={PAGES}", "tmpfs", str(folder))


def main() -> int:
    from harness.cli import main as harness

    make_unwritable(sys.argv[1], Path(sys.argv[2]))
    answers = []
    for words in json.load(sys.stdin):
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = harness(words)
        answers.append({"words": words, "code": code, "err": err.getvalue()})
    paths = sorted(Path(sys.argv[2]).rglob("*"))
    left = [str(path) for path in paths if path.is_file()]
    folders = [str(path) for path in paths if path.is_dir()]
    json.dump({"answers": answers, "left": left, "folders": folders}, sys.stdout)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, subprocess.CalledProcessError) as error:  # no right to mount
        print(f"cannot mount: {error}", file=sys.stderr)
        os._exit(77)
