"""Tests of functions that torch compiles need a C++ compiler."""

import os
import shutil

import pytest

needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None and os.environ.get("CI") != "true",
    reason="torch compiles with g++, which is not installed",
)
