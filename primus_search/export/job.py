"""What a launch file is written from: the candidate in words, and what it trains on which machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from primus_search.base.errors import PrimusSearchError
from primus_search.space import ClusterChoice, Space
from primus_search.values.candidates import Candidates
from primus_search.values.job import Job
from primus_search.values.layout import Layout, expand, layout_string
from primus_search.values.machine.framework import ANY_FRAMEWORK, Framework


class Inexpressible(PrimusSearchError):
    """A framework cannot start a candidate; the message names the knobs, the rules and the nearest one it can start,
    or the parts of its model that the framework does not have."""

    exit_code = 4


@dataclass(frozen=True, kw_only=True)
class LaunchJob(Job):
    """One candidate (a table of one row) with its model, cluster, workload and the framework that starts it."""

    candidate: Candidates
    framework: Framework = ANY_FRAMEWORK

    @classmethod
    def of(cls, space: Space, choice: ClusterChoice, candidate: Candidates) -> "LaunchJob":
        """The job of a candidate on one cluster of a space, under that cluster's framework."""
        return cls(
            model=space.model,
            cluster=choice.cluster,
            workload=space.workload,
            launcher=choice.framework.launcher,
            candidate=candidate,
            framework=choice.framework,
        )

    @cached_property
    def row(self) -> Mapping[str, Any]:
        """The candidate in words."""
        return self.candidate.row(0)

    @cached_property
    def dp(self) -> int:
        """Data-parallel replicas of the dense layers."""
        return int(self.degrees(self.candidate).dp[0])

    @cached_property
    def num_copies(self) -> int:
        """Sharded copies of the weights: HSDP has one per group of `shard_group` of the dp * cp ranks, else 1."""
        group = int(self.row["shard_group"])
        return self.dp * int(self.row["cp"]) // group if group else 1

    @cached_property
    def microbatches(self) -> int:
        """Micro-batches per pipeline and step."""
        return int(self.degrees(self.candidate).microbatches[0])

    @cached_property
    def layout(self) -> str | None:
        """The layers of each virtual stage as a Megatron layout string; None where they are simply even."""
        layout = Layout.parse(self.row["pipeline_layout"])
        if layout.kind == "even":
            return None
        return layout_string(self.model, self.row["pp"] * self.row["vpp"], layout)

    @cached_property
    def stage_parts(self) -> list[str]:
        """The layers of each virtual stage as letters of a layout string, E t m L."""
        layout = Layout.parse(self.row["pipeline_layout"])
        return expand(layout_string(self.model, self.row["pp"] * self.row["vpp"], layout) or "")
