"""What a launch file is written from: the candidate in words, and what it trains on which machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from primus_search.candidates import Candidates, degrees
from primus_search.cluster import Cluster
from primus_search.layout import Layout, layout_string
from primus_search.model import Model
from primus_search.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Job:
    """One candidate (a table of one row) with its model, cluster and workload."""

    candidate: Candidates
    model: Model
    cluster: Cluster
    workload: Workload

    @cached_property
    def row(self) -> Mapping[str, Any]:
        """The candidate in words."""
        return self.candidate.row(0)

    @cached_property
    def dp(self) -> int:
        """Data-parallel replicas of the dense layers."""
        return int(self._degrees.dp[0])

    @cached_property
    def num_replicas(self) -> int:
        """Copies of the weights under HSDP; 1 where every data-parallel rank holds a share of the same copy."""
        group = int(self.row["shard_group"]) or self.dp
        return self.dp // group if self.dp % group == 0 else 1

    @cached_property
    def microbatches(self) -> int:
        """Micro-batches per pipeline and step."""
        return int(self._degrees.microbatches[0])

    @cached_property
    def _degrees(self) -> Any:
        return degrees(self.candidate, world=self.cluster.world, global_batch_size=self.workload.global_batch_size)

    @cached_property
    def layout(self) -> str | None:
        """The layers of each virtual stage as a Megatron layout string; None where they are simply even."""
        layout = Layout.parse(self.row["pipeline_layout"])
        if layout.kind == "even":
            return None
        return layout_string(self.model, self.row["pp"] * self.row["vpp"], layout)
