"""The conformance kit: proves a strategy against serial training and against its own formula."""

from harness.conformance.case_list import LARGER as LARGER
from harness.conformance.case_list import Extent as Extent
from harness.conformance.kit import check as check
from harness.conformance.kit import find_cases as find_cases
from harness.conformance.kit import select_cases as select_cases
from harness.conformance.laws import Finding as Finding
