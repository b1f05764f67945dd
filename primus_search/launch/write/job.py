"""What a launch file is written from: the candidate in words, and what it trains on which machine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from primus_search.base.errors import PrimusSearchError
from primus_search.space import ClusterChoice, Space
from primus_search.values.candidates import Candidates
from primus_search.values.job import Job
from primus_search.values.layout import Layout, expand, layout_string
from primus_search.values.machine.framework import ANY_FRAMEWORK, Framework
from primus_search.values.model import Constants, GatedDeltaNet, Mamba2, Mixer, Model


class Inexpressible(PrimusSearchError):
    """A framework cannot start a candidate; the message names the knobs, the rules and the nearest one it can start,
    or the parts of its model that the framework does not have."""

    exit_code = 4


@dataclass(frozen=True, kw_only=True)
class LaunchJob(Job):
    """One candidate (a table of one row) with its model, cluster, workload and the framework that starts it.

    recipe   the recipe of Megatron-Bridge whose difference is written; none: every setting is
    """

    candidate: Candidates
    framework: Framework = ANY_FRAMEWORK
    recipe: str = ""

    @classmethod
    def of(cls, space: Space, choice: ClusterChoice, candidate: Candidates, recipe: str = "") -> "LaunchJob":
        """The job of a candidate on one cluster of a space, under that cluster's framework."""
        return cls(
            model=space.model,
            cluster=choice.cluster,
            workload=space.workload,
            launcher=choice.framework.launcher,
            candidate=candidate,
            framework=choice.framework,
            recipe=recipe,
        )

    @cached_property
    def contract(self) -> Framework:
        """What the framework has for jobs of this model."""
        return self.framework.of(self.model)

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


def unsaid(model: Model, read: Model) -> list[str]:
    """Parts of a model that come back as others."""
    return [name for name, part in PARTS.items() if part(model) != part(read)] + _lost_mixers(model, read)


def _lost_mixers(model: Model, read: Model) -> list[str]:
    """Names of the mixers that come back as others."""
    pairs = zip(model.layers, read.layers, strict=True)
    both = [(_as_trained(model.mixer(ours)), _as_trained(read.mixer(theirs))) for ours, theirs in pairs]
    return list(dict.fromkeys(ours.name for ours, theirs in both if ours != theirs))


def _as_trained(mixer: Mixer) -> Mixer:
    """A mixer without the chunk of its kernels, which changes no result."""
    return replace(mixer, chunk=0) if isinstance(mixer, Mamba2 | GatedDeltaNet) else mixer


PARTS: Mapping[str, Callable[[Model], object]] = {
    "sizes of layers": lambda model: [model.layer_params(kind) for kind in model.layers],
    "experts": lambda model: model.moe if model.is_moe else None,
    "norms": lambda model: (model.norm, [model.layer_norms(kind) for kind in model.layers]),
    "biases": lambda model: (model.has_linear_bias, model.has_qkv_bias),
    "sinks": lambda model: model.has_attention_sinks,
    "the activation": lambda model: (model.is_gated, model.activation_clamp),
    "embeddings": lambda model: (model.vocab_size, model.is_tied, model.learned_positions > 0),
    "hyper-connections": lambda model: model.hyper_streams,
    "per-layer embeddings": lambda model: model.per_layer_embedding,
    "prediction layers": lambda model: model.num_mtp_layers,
}
"""What is compared beside the mixers, by its name in the refusal."""


ACTIVATIONS = {"gelu": "gelu_tanh", "": None}
"""Two forms of one function, whose values differ by less than BF16 resolves."""


MAKES_ANOTHER = ("positions",)


def refused_constants(job: LaunchJob) -> list[str]:
    """Constants that make another model, so that a file without them would not be this one's."""
    model = job.model
    lost = [f"{name} ({value})" for name, value in model.constants.others if name in MAKES_ANOTHER]
    if model.is_gated and model.constants.activation not in ("", "silu") and not model.activation_clamp:
        lost.append(f"a gate of {model.constants.activation}")
    if 0 < model.learned_positions < job.workload.seq_length:
        lost.append(f"a sequence of {job.workload.seq_length:,} with {model.learned_positions:,} learned positions")
    return lost


def unsaid_constants(model: Model, read: Model) -> list[str]:
    """Constants of a model that its file says otherwise, each with its value, and towers that it does not have."""
    ours, theirs = model.constants, read.constants
    lost = []
    for one in fields(ours):
        value, back = ours.__getattribute__(one.name), theirs.__getattribute__(one.name)
        is_idle = one.name.startswith("router") and not model.is_moe
        if one.name in ("others", "activation") or value in (None, "") or is_idle:
            continue
        if one.name == "rotary_scaling":
            value, back = _plainly(ours), _plainly(theirs)
        if value != back and not (one.name == "router_scale" and value == 1.0 and back is None):
            lost.append(f"{one.name.replace('_', ' ')} of the model: {_shown(value)}")
    activation, (form, back) = ours.activation, [ACTIVATIONS.get(c.activation, c.activation) for c in (ours, theirs)]
    if not model.is_gated and activation and form != back:
        lost.append(f"activation of the MLP: {activation}")
    if not activation and not model.is_gated:
        lost.append("activation of the MLP: GELU as written; squared ReLU (squared_relu) in Nemotron")
    towers = {one.name for one in model.towers} - {one.name for one in read.towers}
    lost += [f"{name} tower of the model: not started, priced on the first stage" for name in sorted(towers)]
    others = [one for one in ours.others if one not in theirs.others]
    return lost + [f"{name.replace('_', ' ')} of the model: {value}" for name, value in others]


def _plainly(constants: Constants) -> dict[str, Any]:
    """The stretch of frequencies without what changes nothing."""
    neutral: dict[str, Any] = {"mscale": 1.0, "mscale_all_dim": 0.0, "beta_fast": 32.0, "beta_slow": 1.0}
    found = {k: v for k, v in constants.scaling.items() if k != "max_position_embeddings"}
    return {k: v for k, v in found.items() if neutral.get(k) != v} if found.get("factor") != 1.0 else {}


def _shown(value: Any) -> str:
    return ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
