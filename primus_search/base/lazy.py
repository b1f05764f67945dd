"""What importing the package does: names that are loaded at first use, and where numba keeps compiled kernels.

`loader` serves the public names of a package. `provide` and `provided` let a lower room call what a higher one offers:
the package's `__init__`, which stands above all rooms, says who does it.
"""

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def loader(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """What a package assigns to `__getattr__` (PEP 562): each public name, from the module it lives in."""

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return load


_providers: dict[str, tuple[str, str]] = {}
"""Service -> module and function that does it."""


def provide(service: str, module: str, function: str) -> None:
    """Say which function does a service; its module is loaded when the service is first used."""
    _providers[service] = (module, function)


def provided(service: str) -> Callable[..., Any]:
    """The function that does a service. Raises `LookupError` where none provides it."""
    module, function = _providers[service]
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found


BESIDE = os.path.join(os.path.dirname(__file__), os.pardir, "schedule")  # noqa: PTH118, PTH120 - no pathlib here
"""A folder of the package with kernels."""


THREADS = "NUMBA_NUM_THREADS"


def _is_positive(text: str) -> bool:
    try:
        return int(text) > 0
    except ValueError:
        return False


def choose_kernel_cache() -> None:
    """Set NUMBA_CACHE_DIR to a folder of the user's cache, unless it is set or the package can be written.

    numba would take `~/.cache/numba`: without a home folder it makes a folder named `~` where it can, and cannot be
    loaded where it cannot. Nor can it be loaded with a number of threads that is none, so that is dropped: no kernel
    of this package uses threads of numba.
    """
    if not _is_positive(os.environ.get(THREADS, "1")):
        del os.environ[THREADS]
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


def load_without(module: str, optional: str) -> None:
    """Import a module as if a library that it can do without were not installed; nothing where either is loaded."""
    if module not in sys.modules and optional not in sys.modules:
        sys.modules[optional] = None  # type: ignore[assignment]
        try:
            import_module(module)
        finally:
            del sys.modules[optional]
