"""The statuses of a record, and which of them are results."""

OK, DIVERGED = "ok", "diverged"
STATUSES = (OK, "oom", "timeout", DIVERGED, "failed", "refused")
SETTLED = (OK, "oom", "timeout", DIVERGED)
"""Runs with these are not repeated. Training is deterministic, so a run that diverged would diverge again; what
refused a run or failed it may have been mended since."""
