"""The mark of tests that need a C++ compiler, because torch compiles functions in them."""

import os
import shutil

import pytest

needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None and os.environ.get("CI") != "true",
    reason="torch compiles with g++, which is not installed",
)
