"""`python -m benchmarks`, with one thread and the allocator settings that the launcher gives to ranks.

The C library reads its allocator's settings when a process starts, so this process replaces itself if they are missing.
"""

import os
import sys

from harness.spec.machine_card import load_machine
from harness.spec.root import find_root

if __name__ == "__main__":
    settings = {"OMP_NUM_THREADS": "1", **load_machine(find_root(), "local").allocator}
    missing = {name: value for name, value in settings.items() if name not in os.environ}
    if missing:
        os.execve(
            sys.executable, [sys.executable, "-m", "benchmarks", *sys.argv[1:]], {**os.environ, **missing}
        )
    from benchmarks.runner import main

    sys.exit(main(sys.argv[1:]))
