"""Choose the training configuration of a large model before the cluster is paid for.

from primus_search import load_space, project, search
"""

from typing import TYPE_CHECKING

from primus_search.lazy import loader

if TYPE_CHECKING:
    from primus_search.complete_search import search
    from primus_search.cost.project import project
    from primus_search.declare import load_cluster, load_model, load_space

__version__ = "0.1.0"

_LAZY = {
    "load_model": "declare",
    "load_cluster": "declare",
    "load_space": "declare",
    "project": "cost.project",
    "search": "complete_search",
}
"""Public name -> module it lives in. Loaded at first use, so that `import primus_search` stays instant."""

__all__ = ["__version__", "load_cluster", "load_model", "load_space", "project", "search"]


__getattr__ = loader(__name__, _LAZY)


def __dir__() -> list[str]:
    return __all__
