"""The search: a funnel over the whole space, on one core or a cluster, and the run folder it leaves.

The package itself can be called: `search(space)` is `search.run_search(space)`. What it offers is loaded at first use:
who only opens a run folder needs no funnel and no compiler.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from primus_search.lazy import loader

if TYPE_CHECKING:
    from primus_search.search.funnel import Options, run_search
    from primus_search.search.result import ClusterResult, SearchResult, Table, ladder
    from primus_search.search.store import RunFolder, StoreError, default_folder, summary

__all__ = [
    "ClusterResult",
    "Options",
    "RunFolder",
    "SearchResult",
    "StoreError",
    "Table",
    "default_folder",
    "ladder",
    "run_search",
    "summary",
]

_HOMES = {
    "ClusterResult": "result",
    "Options": "funnel",
    "RunFolder": "store",
    "SearchResult": "result",
    "StoreError": "store",
    "Table": "result",
    "default_folder": "store",
    "ladder": "result",
    "run_search": "funnel",
    "summary": "store",
}


__getattr__ = loader(__name__, _HOMES)


class _CallableModule(ModuleType):
    """Lets `from primus_search import search; search(space)` work beside `primus_search.search.run_search`."""

    def __call__(self, *arguments: Any, **options: Any) -> "SearchResult":
        from primus_search.search.funnel import run_search

        return run_search(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
