"""Names that are loaded at first use, so that importing the package stays cheap.

`loader` serves the public names of a package. `provide` and `provided` let a lower room call what a higher one offers:
the package's `__init__`, which stands above all rooms, says who does it.
"""

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
    """The function that does a service. Raises `LookupError` where nobody provides it."""
    module, function = _providers[service]
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found
