"""`harness check`: a strategy compared with serial training, with its formulas and with its replay."""

from harness.conformance.case_list import LARGER as LARGER
from harness.conformance.case_list import Extent as Extent
from harness.conformance.checks import Finding as Finding
from harness.conformance.suite import check as check
from harness.conformance.suite import find_cases as find_cases
from harness.conformance.suite import select_cases as select_cases
