"""The statuses of a record, and which of them are results."""

OK, DIVERGED = "ok", "diverged"
STATUSES = (OK, "oom", "timeout", DIVERGED, "failed", "refused")
SETTLED = (OK, "oom", "timeout", DIVERGED)
"""Statuses of runs that are not repeated. Training is deterministic, so a diverged run would diverge again; a refused
or failed run may succeed later."""
