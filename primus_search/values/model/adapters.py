"""Low-rank adapters beside frozen weights: on which matrices of a layer, at which rank, and the parameters they train.

An adapter of a matrix W (n, k) adds B A x with A (r, k) and B (n, r): r (n + k) parameters (arXiv:2106.09685). Names of
matrices are those of Megatron-Core; `ALIASES` has HuggingFace's. `linear_qkv` and `linear_fc1` are one adapter of the
joint product, `linear_q`, `linear_k`, `linear_v` and `linear_fc1_gate`, `linear_fc1_up` one of each part.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from primus_search.base.guards.files import table_beside
from primus_search.values.model.attention_mixers import Attention
from primus_search.values.model.layer_kinds import LayerKind, NoFeedForward
from primus_search.values.model.mixer import Mixer, WeightMatrix, column, row
from primus_search.values.model.scan_mixers import ShortConvolution

if TYPE_CHECKING:
    from primus_search.values.model.decoder import Model

DEFAULT_MODULES = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
"""What Megatron-Bridge, Primus and NeMo adapt unless told otherwise."""
EACH, JOINT = "experts", "shared_expert_adapters"
"""Adapters of routed experts: one of each, or one for all of a layer (Megatron-Bridge's `share_expert_adapters`)."""
IN, OUT = "in_proj", "out_proj"
"""Products of a scan (Mamba and others) under Megatron-Core's names, whose attention has `linear_proj`."""

_NAMES = table_beside(__file__)
ALIASES: Mapping[str, str] = _NAMES["aliases"]
"""HuggingFace's and older names of the same matrices."""
GROUPS: Mapping[str, str] = _NAMES["groups"]
"""Groups of projections that are one matrix of that name."""
QKV, FC1 = ("linear_q", "linear_k", "linear_v"), ("linear_fc1_gate", "linear_fc1_up")
OF_MLP = ("linear_fc1", "linear_fc2", *FC1)
LATENTS = ("linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj")
EVERY = frozenset(("all", "all-linear"))
"""Words for every matrix of a layer."""
JOINT_STYLE = (*DEFAULT_MODULES, *LATENTS, IN, OUT, JOINT)
PART_STYLE = (*QKV, "linear_proj", *FC1, "linear_fc2", *LATENTS, IN, OUT, EACH)
JOINED = {"linear_qkv": QKV, "linear_fc1": FC1}
"""Matrices of one product, by the name of the product."""
KNOWN = tuple(dict.fromkeys((*JOINT_STYLE, *PART_STYLE)))
HUB_NAMES = (*(name for name, own in ALIASES.items() if own in PART_STYLE and not name.startswith("linear")), IN, OUT)
"""HuggingFace's names of single matrices, which patterns of modules are matched with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFormat:
    """How frozen matrices of layers are held.

    name             bf16: as trained ones are
    bytes_per_param  scales included; 0: as the stack holds weights that are trained
    """

    name: str = "bf16"
    bytes_per_param: float = 0.0

    @property
    def is_packed(self) -> bool:
        """Whether a product first unpacks the matrix."""
        return self.bytes_per_param > 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """What is trained of a model whose own weights are frozen.

    modules   names of `KNOWN`     dropout  share of an adapter's inputs that is dropped; above 0 it reads a copy
    """

    rank: int
    alpha: float = 32.0
    modules: tuple[str, ...] = DEFAULT_MODULES
    dropout: float = 0.0
    base: BaseFormat = BaseFormat()

    def __post_init__(self) -> None:
        unknown = [name for name in self.modules if name not in KNOWN]
        if unknown or not self.modules:
            raise ValueError(f"modules {', '.join(unknown) or 'are empty'}; known: {', '.join(KNOWN)}")
        if self.rank < 1:
            raise ValueError("the rank of an adapter is at least 1")
        for joint, parts in JOINED.items():
            if joint in self.modules and set(parts) & set(self.modules):
                raise ValueError(f"modules name {joint} and a part of it; give one of them")
        if EACH in self.modules and JOINT in self.modules:
            raise ValueError(f"modules name {EACH} and {JOINT}; give one of them")


def named(names: Iterable[str], model: "Model | None" = None) -> tuple[str, ...]:
    """Modules under the names of Megatron-Core; `out_proj` is attention's, too, where no scan but a convolution has
    one: HuggingFace's name in OPT and LFM2."""
    also: dict[str, tuple[str, ...]] = {name: (own,) for name, own in ALIASES.items()}
    if model is not None:
        scans = [mixer for kind in model.kinds if _is_scan(mixer := model.mixer(kind), model)]
        if all(isinstance(one, ShortConvolution) for one in scans):
            also[OUT] = ("linear_proj", OUT) if scans else ("linear_proj",)
    return tuple(dict.fromkeys(each for name in names for each in also.get(name, (name,))))


def _is_scan(mixer: Mixer, model: "Model") -> bool:
    return any(p.group == "input" for p in mixer.projections(model.hidden))


def modules_of(model: "Model", names: Sequence[str]) -> tuple[str, ...]:
    """What a framework adapts of a model under these names: those that it has, and experts by names of an MLP.

    Names of Megatron-Core match the joint product of experts, for which one adapter serves (Megatron-Bridge's
    `share_expert_adapters`); HuggingFace's match each expert's own. No names: all joint products; `all`: every part.
    """
    asked = JOINT_STYLE if not names else PART_STYLE if EVERY.intersection(names) else named(names, model)
    if EACH not in asked and {"linear_fc1", "linear_fc2"}.intersection(names):
        asked = (*asked, JOINT)
    elif JOINT not in asked and {"gate_proj", "up_proj", "down_proj", "gate_up_proj"}.intersection(names):
        asked = (*asked, EACH)
    whole = replace(model, adapters=Adapters(rank=1, modules=asked))
    has = {one.module for kind in model.kinds for one in adapted_matrices(whole, kind)}
    if has.intersection((EACH, JOINT)) and len(sides := _sides_of_experts(asked)) == 1:
        has |= {*sides, *FC1[: 2 * ("linear_fc1" in sides)]}  # what says which of an expert's matrices
    return tuple(name for name in asked if name in has)


def _sides_of_experts(chosen: Sequence[str]) -> tuple[str, ...]:
    """Matrices of an expert with an adapter: the sides of an MLP that stand beside the word of experts, else both."""
    sides = ("linear_fc1", "linear_fc2")
    beside = {"linear_fc1" if name in FC1 else name for name in chosen}
    return tuple(one for one in sides if one in beside) or sides


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """One matrix with an adapter. `of_experts`: every token copy of a routed expert passes it."""

    module: str
    matrix: WeightMatrix
    of_experts: bool = False

    def params(self, rank: int) -> int:
        """Parameters of A and B of one such adapter."""
        return rank * (self.matrix.n + self.matrix.k) * self.matrix.copies


def adapted_matrices(model: "Model", kind: LayerKind) -> tuple[Adapted, ...]:
    """Matrices of a layer of that kind with an adapter, one expert's where experts have one; empty without adapters."""
    if model.adapters is None:
        return ()
    chosen = model.adapters.modules
    of_layer = [*_of_mixer(model, kind), *_of_feed_forward(model, kind)]
    found = [Adapted(module=name, matrix=matrix) for name, matrix in _joined(of_layer, chosen) if name in chosen]
    if kind.is_moe and model.moe is not None and not isinstance(kind.feed_forward, NoFeedForward):
        experts = next((name for name in (EACH, JOINT) if name in chosen), "")
        gates, inner, outer = model.num_mlp_matrices - 1, model.moe.expert_ffn_hidden, model.expert_hidden
        gates = min(len({*FC1}.intersection(chosen)) or gates, gates)
        matrices = {"linear_fc1": column(EACH, gates * inner, outer), "linear_fc2": row(EACH, outer, inner)}
        sides = _sides_of_experts(chosen) if experts else ()
        found += [Adapted(module=experts, matrix=matrices[side], of_experts=True) for side in sides]
    return tuple(found)


def _joined(matrices: list[tuple[str, WeightMatrix]], chosen: tuple[str, ...]) -> Iterator[tuple[str, WeightMatrix]]:
    """Matrices by name, those of one product as one where the product is chosen."""
    for joint, parts in JOINED.items():
        if joint not in chosen:
            continue
        kept = [(name, matrix) for name, matrix in matrices if name not in parts]
        for k in dict.fromkeys((m.group, m.k) for name, m in matrices if name in parts):
            n = sum(m.n for name, m in matrices if name in parts and (m.group, m.k) == k)
            kept.append((joint, column(k[0], n, k[1])))
        matrices = kept
    yield from matrices


def _of_mixer(model: "Model", kind: LayerKind) -> Iterator[tuple[str, WeightMatrix]]:
    mixer = model.mixer(kind)
    values = mixer.num_kv_heads * mixer.value_dim if isinstance(mixer, Attention) and not mixer.has_shared_kv else 0
    for p in mixer.projections(model.hidden):
        if p.group == "qkv":
            if not p.limit:
                yield "linear_q", p
            elif values:
                yield "linear_k", column(p.group, p.n - values, p.k, limit=p.limit)
                yield "linear_v", column(p.group, values, p.k, limit=p.limit)
            else:
                yield "linear_k", p
        elif p.group in GROUPS:
            yield OUT if p.group == "output" and _is_scan(mixer, model) else GROUPS[p.group], p


def _of_feed_forward(model: "Model", kind: LayerKind) -> Iterator[tuple[str, WeightMatrix]]:
    """Dense MLPs that every token of a layer passes: its own, or shared experts and one beside them."""
    if isinstance(kind.feed_forward, NoFeedForward):
        return
    moe = model.moe if kind.is_moe else None
    inners = (moe.shared_ffn_hidden, moe.parallel_ffn_hidden) if moe else (model.ffn_hidden_of(kind),)
    for i, inner in enumerate(inners):
        if inner:
            for name in FC1 if model.is_gated else FC1[1:]:
                yield name, column(f"mlp {i}", inner, model.hidden)
            yield "linear_fc2", row(f"mlp {i}", model.hidden, inner)


def adapter_params(model: "Model", kind: LayerKind) -> int:
    """Parameters that adapters train in one layer of that kind, all experts included."""
    if model.adapters is None:
        return 0
    experts = model.moe.num_experts if model.moe else 0
    return sum(
        one.params(model.adapters.rank) * (experts if one.module == EACH else 1)
        for one in adapted_matrices(model, kind)
    )
