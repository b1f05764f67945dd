"""A compiler that is set up when there is something to compile, not when a kernel is read from disk."""

from typing import Any


def spare_compiler() -> None:
    """Let numba read kernels from disk without setting up its compiler: 0.4 to 0.6 s of a cold start.

    Before numba 0.68 looks for a kernel on disk it registers every function it knows and refreshes its tables of types.
    Its compiler does the same when it begins (`CompilerBase`), so a kernel that is not on disk compiles, or fails, as
    ever. A kernel that is read needs numba's runtime and no more.
    """
    from numba.core import caching
    from numba.core.runtime import rtsys

    if "_load_overload" not in vars(caching.Cache) or not hasattr(caching.Cache, "_guard_against_spurious_io_errors"):
        return  # another numba, which starts in its own time
    _spare_linear_algebra()

    def load_overload(self: Any, sig: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)

    caching.Cache.load_overload = load_overload


def _spare_linear_algebra() -> None:
    """Load numba's array functions, which kernels on disk refer to, without SciPy's BLAS, which no kernel uses.

    numba imports `scipy.linalg` with them, only to know whether it is there, and again when a kernel with linear
    algebra is compiled. The second time is kept.
    """
    from numba.np import linalg

    if not hasattr(linalg, "ensure_blas"):
        return
    real = linalg.ensure_blas
    linalg.ensure_blas = _is_there
    try:
        from numba.np import arraymath  # noqa: F401  # loaded for its first look, which is now made
    finally:
        linalg.ensure_blas = real


def _is_there() -> None:
    """What numba asks: an ImportError would say no."""
