"""The report: one page that says what was run, what it showed, what failed, and how to do it again."""

from harness.report.page import write as write
