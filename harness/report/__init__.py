"""The report: one page with the runs of collected tables or packs, their results, failures, and how to repeat them."""

from harness.report.page import write_report as write_report
