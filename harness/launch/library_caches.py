"""The folders in which libraries keep what they compile, on the disk of each node, where other users may write too.

    python -m harness.launch.library_caches harness.run.rank WORDS

A library runs what it finds in its cache. So a task makes sure that the folder is its user's own before it imports any.
"""

import os
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from harness.files import make_private_folder

FOLDER = "HARNESS_CACHES"
"""The variable with the folder of all caches of a node."""
CACHES = {
    "NUMBA_CACHE_DIR": "numba",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
    "MIOPEN_USER_DB_PATH": "miopen",
    "MIOPEN_CUSTOM_CACHE_DIR": "miopen",
    "MPLCONFIGDIR": "matplotlib",
}
"""The folders that libraries write, each in the card's folder on the node itself: all ranks would write at once."""


def cache_environment(local: str) -> dict[str, str]:
    """The variables that name the caches of a node, below its folder `local`."""
    folder = f"{local}/harness-{os.getuid()}"
    return {FOLDER: folder, **{name: f"{folder}/{cache}" for name, cache in CACHES.items()}}


def secure_caches(environ: MutableMapping[str, str]) -> None:
    """Makes the folder of the caches this user's own; another one is named if somebody else made it first.

    Where no folder can be made, libraries choose for themselves. A cache that a user names is left alone.
    """
    if FOLDER not in environ:
        return
    folder, private = environ[FOLDER], None
    with suppress(OSError):
        Path(folder).parent.mkdir(parents=True, exist_ok=True)
        private = make_private_folder(Path(folder))
    for name, cache in CACHES.items():
        if environ.get(name) != f"{folder}/{cache}":
            continue
        if private is None:
            del environ[name]
        else:
            environ[name] = str(private / cache)


def main() -> int:
    """Runs the program on the command line once its caches are safe."""
    secure_caches(os.environ)
    module, *sys.argv[1:] = sys.argv[1:]
    return int(import_module(module).main())


if __name__ == "__main__":
    sys.exit(main())
