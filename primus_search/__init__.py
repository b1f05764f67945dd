"""Choose the training configuration of a large model before the cluster is paid for.

from primus_search import load_space, project, search
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "load_model": "primus_search.declare",
    "load_cluster": "primus_search.declare",
    "load_space": "primus_search.declare",
    "project": "primus_search.cost.project",
}
"""Public name -> module it lives in. Loaded at first use, so that `import primus_search` stays instant.

`search` needs no entry: it is the package `primus_search.search`, which can be called.
"""

__all__ = ["__version__", *_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__
