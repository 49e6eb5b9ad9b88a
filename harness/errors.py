"""The two errors a user may meet. Everything else that is raised is a defect of ours."""


class UserError(ValueError):
    """The request was wrong: the message says what, where, what is accepted and the way out. Exit code 2."""


class RunError(RuntimeError):
    """The request was right, it ran and did not succeed. Exit code 1."""
