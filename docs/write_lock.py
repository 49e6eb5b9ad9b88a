"""Writes constraints.lock: all versions of constraints.txt with the hashes of their files, from the package index.

    python docs/write_lock.py

`make setup HASHES=1` accepts no other files. Torch and what only its builds for GPUs need are left out, because each
index has its own builds.
"""

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "constraints.lock"
OF_TORCH = ("torch==", "triton==", "nvidia-", "cuda-")
"""The beginnings of the lines of torch and of what only its builds for GPUs need."""
DEFAULT_INDEX = "https://pypi.org/simple"
JSON_API = "application/vnd.pypi.simple.v1+json"


def write_lock() -> None:
    """Write the file."""
    lines = (ROOT / "constraints.txt").read_text().split()
    pins = [line.split("==") for line in lines if not line.startswith(OF_TORCH)]
    index = find_index()
    with ThreadPoolExecutor() as pool:
        hashes = pool.map(lambda pin: list_hashes(index, *pin), pins)
        entries = [
            " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{each}" for each in found)])
            for (name, version), found in zip(pins, hashes, strict=True)
        ]
    LOCK.write_text("# Written by docs/write_lock.py.\n" + "\n".join(entries) + "\n")


def find_index() -> str:
    """Return the package index that pip uses here."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip().rstrip("/") or DEFAULT_INDEX


def list_hashes(index: str, name: str, version: str) -> list[str]:
    """Return the SHA-256 hashes of all files of a version, sorted."""
    project = re.sub(r"[-_.]+", "-", name).lower()
    request = Request(f"{index}/{project}/", headers={"Accept": JSON_API})
    with urlopen(request, timeout=60) as answer:
        files = json.load(answer)["files"]
    stem = re.sub(r"[-_.]+", "[-_.]+", re.escape(name).replace("\\-", "-"))
    pattern = re.compile(rf"{stem}-{re.escape(version)}(-.*\.whl|\.tar\.gz|\.zip)", re.IGNORECASE)
    found = sorted({each["hashes"]["sha256"] for each in files if pattern.fullmatch(each["filename"])})
    if not found:
        raise SystemExit(f"{index} has no file of {name} {version}")
    return found


if __name__ == "__main__":
    write_lock()
