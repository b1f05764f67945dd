"""Design-space exploration: a funnel over the whole space, on one core or a cluster, and the run folder it leaves.

Names are loaded at first use: opening a run folder needs no funnel and no compiler.

May import: measure, declare, files, cost, space, schedule, values, base.
"""

from typing import TYPE_CHECKING

from primus_search.base.lazy import loader

if TYPE_CHECKING:
    from primus_search.exploration.funnel import Options, run_search
    from primus_search.exploration.ranking_table import RankingTable
    from primus_search.exploration.result import ClusterResult, SearchResult
    from primus_search.exploration.run_folder.folder import RunFolder, StoreError, default_folder, summary

__all__ = [
    "ClusterResult",
    "Options",
    "RankingTable",
    "RunFolder",
    "SearchResult",
    "StoreError",
    "default_folder",
    "run_search",
    "summary",
]

_HOMES = {
    **dict.fromkeys(("ClusterResult", "SearchResult"), "result"),
    "RankingTable": "ranking_table",
    **dict.fromkeys(("Options", "run_search"), "funnel"),
    **dict.fromkeys(("RunFolder", "StoreError", "default_folder", "summary"), "run_folder.folder"),
}


__getattr__ = loader(__name__, _HOMES)
