"""What the tests of claims share: the evidence, which keeps what it has computed."""

import pytest

from harness.claims import Evidence
from harness.spec.root import find_root


@pytest.fixture(scope="session")
def evidence() -> Evidence:
    return Evidence(find_root())
