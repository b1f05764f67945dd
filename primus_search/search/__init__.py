"""The search: a funnel over the whole space, on one core or a cluster, and the run folder it leaves."""

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
