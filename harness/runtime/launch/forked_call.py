"""The program of `ForkServer.call`: calls one function, whose arguments and result travel over standard input."""

import os
import pickle
import sys
import traceback
from importlib import import_module
from multiprocessing.connection import Connection


def main() -> int:
    """Call the function that the program names, and send its error, or None, and its result."""
    module, _, name = sys.argv[1].partition(":")
    with Connection(os.dup(sys.stdin.fileno())) as channel:
        arguments = channel.recv()
        try:
            reply = pickle.dumps((None, getattr(import_module(module), name)(*arguments)))
        except Exception as error:
            error.add_note(traceback.format_exc())
            reply = _pickle_error(error)
        channel.send_bytes(reply)
    return 0


def _pickle_error(error: Exception) -> bytes:
    """Return the reply for an error, as a RuntimeError if it cannot be pickled."""
    try:
        return pickle.dumps((error, None))
    except Exception:
        other = RuntimeError(f"{type(error).__name__}: {error}")
        other.add_note(traceback.format_exc())
        return pickle.dumps((other, None))
