"""Where numba keeps compiled kernels on a machine on which it cannot write beside the code."""

import os

BESIDE = os.path.join(os.path.dirname(__file__), *[os.pardir] * 2, "schedule")  # noqa: PTH118, PTH120 - no pathlib here
"""A folder of the package with kernels."""


def choose_kernel_cache() -> None:
    """Set NUMBA_CACHE_DIR to a folder of the user's cache, unless it is set or the package can be written.

    numba would take `~/.cache/numba`: without a home folder it makes a folder named `~` where it can, and cannot be
    loaded where it cannot.
    """
    compiled = os.path.join(BESIDE, "__pycache__")  # noqa: PTH118
    place = compiled if os.path.isdir(compiled) else BESIDE  # noqa: PTH112
    if "NUMBA_CACHE_DIR" in os.environ or os.access(place, os.W_OK):
        return
    from contextlib import suppress

    from primus_search.base.errors import InputError
    from primus_search.base.guards.files import cache_folder, temporary_folder

    with suppress(OSError, InputError):
        folder = cache_folder() / "kernels"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            os.environ["NUMBA_CACHE_DIR"] = str(folder)
            return
    os.environ["NUMBA_CACHE_DIR"] = str(temporary_folder("kernels"))
