"""How a run can end, and which ends are results."""

STATUSES = ("ok", "oom", "timeout", "diverged", "failed", "refused")
SETTLED = ("ok", "oom", "timeout", "diverged")
"""Not asked for again. What refused a run may have been mended since, and so may what failed it."""
