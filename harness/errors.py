"""The two errors that a user may meet. Any other exception is a defect of the harness."""


class UserError(ValueError):
    """The request was wrong: the message gives the fault, the value, what is accepted and the way out. Exit code 2."""


class RunError(RuntimeError):
    """The request was right, and the run did not succeed. Exit code 1."""
