"""The report: one page with the runs, their results, their failures, and the way to repeat them."""

from harness.report.page import write as write
