"""A compiler that does not look for linear algebra before somebody asks for it."""


def spare_linear_algebra() -> None:
    """Let numba load its array functions without SciPy's BLAS: 0.2 to 0.3 s of a cold start, for what no kernel uses.

    numba 0.68 imports `scipy.linalg` when its first kernel is loaded, only to know whether it is there, and again when
    a kernel with linear algebra is compiled. The second time is kept: such a kernel compiles, or fails, as ever.
    """
    from numba.np import linalg

    if not hasattr(linalg, "ensure_blas"):
        return  # another numba, which starts in its own time
    real = linalg.ensure_blas
    linalg.ensure_blas = _is_there
    try:
        from numba.np import arraymath  # noqa: F401  # loaded for its first look, which is now made
    finally:
        linalg.ensure_blas = real


def _is_there() -> None:
    """What numba asks: an ImportError would say no."""
