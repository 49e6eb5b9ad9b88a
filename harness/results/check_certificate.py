"""The certificate of a check: a JSON file that says which code of a strategy passed every check, and on how many cases.

The digest shows that a certificate is whole. It is not a signature: only a repetition of the check proves it to others.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from harness import __version__
from harness.base.documents import parse_json
from harness.base.errors import UserError
from harness.base.files import read_regular_file
from harness.base.validation import Frozen, validate
from harness.registry import find_distribution
from harness.spec.spec import hash_data

SCHEMA = 1
MAX_BYTES = 1 << 16
"""The maximum size of a certificate, which has a line for each check."""
Extent = Literal["quick", "usual", "full"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
CheckName = Annotated[str, Field(pattern=r"^[a-zA-Z][a-zA-Z ,'-]{0,99}$")]
Count = Annotated[int, Field(ge=1, lt=1 << 31, strict=True)]
Version = Annotated[str, Field(pattern=r"^[0-9A-Za-z.+!_-]{0,100}$")]


class CheckCertificate(Frozen):
    """A check of a strategy that passed."""

    schema_version: Literal[1] = Field(alias="schema")
    strategy: str = Field(min_length=1, max_length=1000)
    """The name of the strategy, or path/to/file.py:Class."""
    package: str = Field(pattern=r"^[0-9A-Za-z._-]{0,100}$")
    """The package that registers the strategy; empty for a file."""
    package_version: Version
    promise: Literal["exact", "estimator", "approximate", "another model"]
    """How its results relate to serial training, which the checks depend on."""
    strategy_code: Sha256
    """The hash of the code that was checked (`harness.registry.hash_strategy_code`)."""
    harness: Version
    """The version of the harness that checked."""
    extent: Extent
    checks: Count
    """The number of checks: one for each check on each case."""
    cases: dict[CheckName, Count] = Field(min_length=1)
    """The number of cases of each check."""
    digest: Sha256
    """The hash of everything else."""

    @field_validator("cases")
    @classmethod
    def _check_sum(cls, cases: dict[str, int], known: ValidationInfo) -> dict[str, int]:
        if sum(cases.values()) != known.data.get("checks"):
            raise ValueError("the cases of all checks add up to the number of checks")
        return cases

    def to_document(self) -> dict[str, Any]:
        """Return the certificate as JSON data."""
        return self.model_dump(mode="json", by_alias=True)

    def to_json(self) -> str:
        return json.dumps(self.to_document(), indent=1, sort_keys=True) + "\n"


def make_certificate(
    strategy: str, promise: str, code: str, extent: Extent, checks: Iterable[str]
) -> CheckCertificate:
    """Return the certificate of a check. `checks` has the name of each check; `code` is the hash of the strategy."""
    cases = Counter(checks)
    package, version = find_distribution(strategy)
    certificate = {
        "schema": SCHEMA,
        "strategy": strategy,
        "package": package,
        "package_version": version,
        "promise": promise,
        "strategy_code": code,
        "harness": __version__,
        "extent": extent,
        "checks": cases.total(),
        "cases": dict(cases),
    }
    return validate(
        CheckCertificate, {**certificate, "digest": hash_data(certificate)}, f"the certificate of {strategy}"
    )


def parse_certificate(data: bytes, where: str) -> CheckCertificate:
    """Parse a certificate that others made, which errors call `where`. Raises UserError unless it is whole."""
    document = parse_json(data, where)
    certificate = validate(CheckCertificate, document, where)
    if hash_data({key: value for key, value in document.items() if key != "digest"}) != certificate.digest:
        raise UserError(f"{where} was changed: its digest does not fit the rest.")
    return certificate


def read_certificate(path: Path) -> CheckCertificate:
    """Read the certificate in a file."""
    try:
        data = read_regular_file(path, MAX_BYTES)
    except OSError as error:
        raise UserError(f"the certificate {path} cannot be read: {error.strerror or error}.") from None
    return parse_certificate(data, f"the certificate {path}")
