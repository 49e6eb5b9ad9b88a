"""The report: one page with the runs, their results, their failures, and how to repeat them."""

from harness.report.page import write_report as write_report
