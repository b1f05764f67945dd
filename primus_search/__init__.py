"""Choose the training configuration of a large model before the cluster is paid for.

from primus_search import load_space, project, search
"""

from primus_search.lazy import loader

__version__ = "0.1.0"

_LAZY = {
    "load_model": "declare",
    "load_cluster": "declare",
    "load_space": "declare",
    "project": "cost.project",
}
"""Public name -> module it lives in. Loaded at first use, so that `import primus_search` stays instant.

`search` needs no entry: it is the package `primus_search.search`, which can be called.
"""

__all__ = ["__version__", *_LAZY]


__getattr__ = loader(__name__, _LAZY)


def __dir__() -> list[str]:
    return __all__
