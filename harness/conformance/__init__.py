"""The conformance kit: proves a strategy against serial training and against its own formula."""

from harness.conformance.case_list import LARGER as LARGER
from harness.conformance.case_list import Extent as Extent
from harness.conformance.case_list import list_cases as list_cases
from harness.conformance.kit import check as check
from harness.conformance.laws import Finding as Finding
