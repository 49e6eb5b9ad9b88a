"""The conformance kit: proves a strategy against serial training and against its own formula."""

from harness.check.kit import LARGER as LARGER
from harness.check.kit import Extent as Extent
from harness.check.kit import check as check
from harness.check.laws import Finding as Finding
