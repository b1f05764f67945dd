"""`njit` whose compiled kernels are kept on disk with a checksum: a damaged or foreign file is compiled anew.

numba unpickles what it finds and runs the machine code in it; a file that was cut short stops every command, and one
with a flipped bit may compute something else. Here every file begins with the SHA-256 of the rest, and machine code
says which kernel, types, processor and source it is of.
"""

import hashlib
import multiprocessing
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.runtime import rtsys

DIGEST_BYTES = hashlib.sha256().digest_size


def njit(**options: Any) -> Any:
    """`numba.njit(cache=True, ...)` with checked files."""

    def compiled(function: Callable[..., Any]) -> Any:
        kernel = numba.njit(**options)(function)
        if hasattr(kernel, "enable_caching"):  # a plain function under NUMBA_DISABLE_JIT
            kernel._cache = _Cache(function)
        return kernel

    return compiled


class _Damaged(Exception):
    """A file is not what a kernel of this source was kept in."""


class _File(IndexDataCacheFile):  # type: ignore[misc]  # numba ships no types
    """The index and the machine code of one kernel."""

    def _dump(self, content: Any) -> bytes:
        plain: bytes = super()._dump(content)
        return hashlib.sha256(plain).digest() + plain

    def _checked(self, path: str) -> Any:
        content = Path(path).read_bytes()
        if hashlib.sha256(content[DIGEST_BYTES:]).digest() != content[:DIGEST_BYTES]:
            raise _Damaged(path)
        return pickle.loads(content[DIGEST_BYTES:])

    def save(self, key: Any, data: Any) -> None:
        super().save(key, (self._index_name, self._source_stamp, key, data))

    def load(self, key: Any) -> Any:
        """The machine code for these types on this processor; None where none is kept."""
        found = super().load(key)
        if found is None:
            return None
        *origin, data = found
        if origin != [self._index_name, self._source_stamp, key]:
            raise _Damaged(self._index_path)
        return data

    def _load_index(self) -> dict[Any, str]:
        try:
            name, version, stamp, kept = self._checked(self._index_path)
        except FileNotFoundError:
            return {}
        except (_Damaged, OSError, ValueError, TypeError):
            note_rebuilt(self._cache_path)
            return {}
        is_mine = (name, version, stamp) == (self._index_name, self._version, self._source_stamp)
        return kept if is_mine else {}

    def _save_index(self, overloads: dict[Any, str]) -> None:
        with self._open_for_write(self._index_path) as file:
            file.write(self._dump((self._index_name, self._version, self._source_stamp, overloads)))

    def _load_data(self, name: str) -> Any:
        return self._checked(self._data_path(name))


class _Cache(FunctionCache):  # type: ignore[misc]
    """Kernels on disk; where they cannot be read or written, they are compiled and not kept."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = _File(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Machine code that is kept; what numba can compile is registered by whoever compiles, here its runtime is."""
        rtsys.initialize(target_context)
        return self._load_overload(sig, target_context)

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super()._load_overload(sig, target_context)
        except Exception:  # whatever unpickling and linking of strange bytes raise
            note_rebuilt(self._cache_path)
            return None

    def _save_overload(self, sig: Any, data: Any) -> None:
        try:
            super()._save_overload(sig, data)
        except OSError as error:
            _note(f"compiled kernels could not be kept in {self._cache_path}: {error.strerror}")


_noted: set[str] = set()


def note_rebuilt(folder: str) -> None:
    """One line on standard error that kernels are compiled anew, once for all that a command finds."""
    _note(f"compiled kernels in {folder} are damaged or of another program; they are compiled anew", "rebuilt")


def _note(text: str, kind: str = "unkept") -> None:
    if kind not in _noted and multiprocessing.parent_process() is None:
        _noted.add(kind)
        print(f"note: {text}", file=sys.stderr)
