"""Reads the pickles that Planetoid is published in, and nothing else that a pickle can do.

Pickles are programs. This reader knows a handful of names, and binds each to something harmless: a sparse
matrix comes back as a plain record of its attributes. Any other name is refused before it is looked up.
"""

import pickle
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from harness.errors import UserError
from harness.sources.refusal import refusing

EXPECTED = "a pickle of numpy arrays, scipy CSR matrices, or a dictionary of lists"


class _Record:
    """Where the attributes of a pickled matrix land."""


def _latin_bytes(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes for Python 2, for the one encoding it uses."""
    if encoding != "latin1":
        raise UserError(f"the pickle encodes text as {encoding!r}; only latin1 is read")
    return text.encode("latin1")


def _new_array(kind: type, shape: tuple[int, ...], code: bytes | str) -> Any:
    """What numpy's own `_reconstruct` does, for plain arrays only."""
    if kind is not np.ndarray:
        raise UserError(f"the pickle makes an array of the class {kind!r}; only numpy.ndarray is read")
    return np.ndarray.__new__(
        np.ndarray, shape, dtype=np.dtype(code.decode() if isinstance(code, bytes) else code)
    )


ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _new_array,
    ("numpy._core.multiarray", "_reconstruct"): _new_array,
    ("scipy.sparse.csr", "csr_matrix"): _Record,
    ("scipy.sparse._csr", "csr_matrix"): _Record,
    ("_codecs", "encode"): _latin_bytes,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """The only door by which a pickle reaches code."""
        try:
            return ALLOWED[module, name]
        except KeyError:
            known = ", ".join(sorted({".".join(key) for key in ALLOWED}))
            raise UserError(f"the pickle asks for {module}.{name}; only {known} are read") from None


def read_pickle(path: Path) -> Any:
    """The array, the CSR matrix or the dictionary of lists in a file written by Python 2 or 3."""
    with refusing(path, EXPECTED), path.open("rb") as file:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", np.exceptions.VisibleDeprecationWarning
                )  # dtypes of old numpy
                content = _Reader(file, encoding="latin1").load()
        except UserError as error:
            raise UserError(f"{path} was refused: {error}. Expected {EXPECTED}.") from None
        except (pickle.UnpicklingError, TypeError, AttributeError, IndexError, ImportError) as error:
            raise ValueError(str(error)) from error
        return _matrix(content) if isinstance(content, _Record) else content


def _matrix(record: _Record) -> sparse.csr_array:
    """The matrix of a record, its indices checked."""
    parts = vars(record)
    shape = parts.get("_shape", parts.get("shape"))
    matrix = sparse.csr_array((parts["data"], parts["indices"], parts["indptr"]), shape=shape)
    matrix.check_format(full_check=True)
    return matrix
