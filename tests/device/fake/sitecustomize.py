"""Makes the fake devices part of every Python process that has this folder on its PYTHONPATH.

Python imports a module of this name when it starts. Torch is not imported here: a finder waits for its import, so that
a process without torch, such as a launcher, starts as fast as ever.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class TorchFinder(MetaPathFinder):
    """Finds torch as Python does, and loads the fake devices right after it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_fake(module: ModuleType) -> None:
            execute(module)
            import fake_cuda

            fake_cuda.install()

        spec.loader.exec_module = execute_and_fake  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, TorchFinder())
