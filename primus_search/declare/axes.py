"""The axes of a space file: what each may hold, how it is read, and how the published schema describes it.

An axis is a value, a list of values, or a word (`auto`; counts also know `divisors` and `powers_of_two`). Words are
resolved later, when model and clusters are known: reading yields `Word` items in their place.

    tp: auto        micro_batch_size: [1, 2, 4]        recompute: [none, selective, {full: [1, 2, all]}]
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from primus_search.candidates import Fp8, GroupedGemm, Recompute, RecomputeMethod, Sharding
from primus_search.declare.source import Document, Keys, did_you_mean, join_words
from primus_search.errors import Problem
from primus_search.layout import BALANCED, EVEN, Layout
from primus_search.schedule.registry import ALIASES
from primus_search.schedule.registry import names as schedule_names
from primus_search.space import AxisValue

ALL = 0
"""What the word `all` is stored as on axes that count layers or ranks."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word that stands for values once model and clusters are known, and the place it was written at."""

    text: str
    where: str


Item = AxisValue | Word


@dataclass(slots=True)
class Reader:
    """Reads the axes of one document; collects problems, and what one axis says about another."""

    document: Document
    problems: list[Problem] = field(default_factory=list)
    implied: dict[str, list[Item]] = field(default_factory=dict)

    def problem(self, keys: Keys, what: str) -> None:
        self.problems.append(self.document.problem(keys, what))

    def imply(self, axis: str, items: Sequence[Item]) -> None:
        """Note values for another axis, in order, without doubles."""
        values = self.implied.setdefault(axis, [])
        values.extend(item for item in items if item not in values)

    def axis(self, spec: "AxisSpec", raw: Any, keys: Keys) -> list[Item]:
        """The items of one axis: values and words, in the order given."""
        if isinstance(raw, list):
            if not raw:
                self.problem(keys, f"is an empty list; give at least one value - allowed: {spec.allowed}")
            return [item for i, one in enumerate(raw) for item in self._item(spec, one, (*keys, i))]
        return self._item(spec, raw, keys)

    def _item(self, spec: "AxisSpec", raw: Any, keys: Keys) -> list[Item]:
        if isinstance(raw, str) and raw in spec.words:
            return [Word(raw, self.document.where(keys))]
        return spec.read(self, spec, raw, keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisSpec:
    """One axis of a space file. `schema` is the JSON schema of one value; `allowed` says the same to a reader."""

    name: str
    summary: str
    allowed: str
    schema: Mapping[str, Any]
    read: Callable[[Reader, "AxisSpec", Any, Keys], list[Item]]
    words: tuple[str, ...] = ("auto",)
    choices: tuple[tuple[str, int], ...] = ()
    least: int = 1

    def json_schema(self) -> dict[str, Any]:
        """A value, a list of values, or a word."""
        one = {"anyOf": [{"enum": list(self.words)}, dict(self.schema)]}
        many = {"type": "array", "items": one, "minItems": 1}
        return {"description": f"{self.summary} Allowed: {self.allowed}.", "anyOf": [*one["anyOf"], many]}


# --- readers of one value ------------------------------------------------------------------------------------------


def _refuse(reader: Reader, spec: AxisSpec, raw: Any, keys: Keys) -> list[Item]:
    known = [*spec.words, *(name for name, _ in spec.choices)]
    hint = did_you_mean(raw, known) if isinstance(raw, str) else ""
    reader.problem(keys, f"{shown(raw)} is not a value of {spec.name}{hint} - allowed: {spec.allowed}")
    return []


def _read_count(reader: Reader, spec: AxisSpec, raw: Any, keys: Keys) -> list[Item]:
    if isinstance(raw, str) and raw in dict(spec.choices):
        return [dict(spec.choices)[raw]]
    if isinstance(raw, bool) or not isinstance(raw, int) or raw < spec.least:
        return _refuse(reader, spec, raw, keys)
    return [raw]


def _read_switch(reader: Reader, spec: AxisSpec, raw: Any, keys: Keys) -> list[Item]:
    return [raw] if isinstance(raw, bool) else _refuse(reader, spec, raw, keys)


def _read_choice(reader: Reader, spec: AxisSpec, raw: Any, keys: Keys) -> list[Item]:
    if isinstance(raw, str) and raw in dict(spec.choices):
        return [dict(spec.choices)[raw]]
    return _refuse(reader, spec, raw, keys)


def _read_stage(reader: Reader, spec: AxisSpec, raw: Any, keys: Keys) -> list[Item]:
    if isinstance(raw, bool) or not isinstance(raw, int) or not 0 <= raw <= 3:
        return _refuse(reader, spec, raw, keys)
    return [raw]


def _read_schedule(reader: Reader, spec: AxisSpec, raw: Any, keys: Keys) -> list[Item]:
    known = list(schedule_names())
    aliases = [name for name, target in ALIASES.items() if target in known]
    if isinstance(raw, str) and raw in (*known, *aliases):
        return [ALIASES.get(raw, raw)]
    hint = did_you_mean(raw, [*known, *aliases]) if isinstance(raw, str) else ""
    reader.problem(keys, f"{shown(raw)} is not a pipeline schedule{hint} - allowed: auto, {', '.join(known)}")
    return []


def _read_recompute(reader: Reader, spec: AxisSpec, raw: Any, keys: Keys) -> list[Item]:
    if isinstance(raw, str):
        if raw == "full":
            reader.imply("recompute_num_layers", [ALL])
        flags = Recompute.NONE
        for part in raw.split("+"):
            if part not in RECOMPUTE_WORDS:
                return _refuse(reader, spec, raw, keys)
            flags |= RECOMPUTE_WORDS[part]
        return [int(flags)]
    if isinstance(raw, dict) and set(raw) <= {"full", "method"} and "full" in raw:
        reader.imply("recompute_num_layers", reader.axis(AXIS["recompute_num_layers"], raw["full"], (*keys, "full")))
        if "method" in raw:
            reader.imply("recompute_method", reader.axis(AXIS["recompute_method"], raw["method"], (*keys, "method")))
        return [int(Recompute.FULL)]
    return _refuse(reader, spec, raw, keys)


def _read_sharding(reader: Reader, spec: AxisSpec, raw: Any, keys: Keys) -> list[Item]:
    if isinstance(raw, dict) and set(raw) == {"hsdp"}:
        reader.imply("shard_group", reader.axis(AXIS["shard_group"], raw["hsdp"], (*keys, "hsdp")))
        return [int(Sharding.HSDP)]
    return _read_choice(reader, spec, raw, keys)


def _read_layout(reader: Reader, spec: AxisSpec, raw: Any, keys: Keys) -> list[Item]:
    if raw in ("even", "balanced"):
        return [EVEN if raw == "even" else BALANCED]
    if isinstance(raw, dict) and raw and set(raw) <= {"first", "last"}:
        bad = [key for key, n in raw.items() if isinstance(n, bool) or not isinstance(n, int) or n < 0]
        for key in bad:
            reader.problem((*keys, key), f"{shown(raw[key])} is not a number of layers")
        return [] if bad else [Layout("ends", raw.get("first"), raw.get("last"))]
    if isinstance(raw, str) and (raw.startswith("first=") or set(raw) <= set("EtmL|,()* 0123456789")):
        try:
            return [Layout.parse(raw.replace(" ", ""))]
        except ValueError as error:
            reader.problem(keys, str(error))
            return []
    return _refuse(reader, spec, raw, keys)


def shown(raw: Any) -> str:
    """A value as a message quotes it."""
    if raw is None:
        return "nothing"
    if isinstance(raw, dict):
        return "a mapping"
    if isinstance(raw, list):
        return "a list"
    return repr(raw)


# --- the axes ------------------------------------------------------------------------------------------------------

RECOMPUTE_WORDS: dict[str, Recompute] = {
    "none": Recompute.NONE,
    "selective": Recompute.CORE_ATTENTION,
    "full": Recompute.FULL,
    "core_attn": Recompute.CORE_ATTENTION,
    "core_attention": Recompute.CORE_ATTENTION,
    "mla_up_proj": Recompute.MLA_UP_PROJ,
    "mlp": Recompute.MLP,
    "moe_act": Recompute.MOE_ACTIVATION,
    "moe_activation": Recompute.MOE_ACTIVATION,
    "layernorm": Recompute.LAYERNORM,
    "op_sac": Recompute.OP_SAC,
    "op_sac_experts": Recompute.OP_SAC | Recompute.OP_SAC_EXPERTS,
}
"""What may be recomputed, with Megatron's own module names (core_attn, moe_act) beside ours."""

_COUNT_WORDS = ("auto", "divisors", "powers_of_two")


def _count(
    name: str, summary: str, *, least: int = 1, every: bool = False, words: Sequence[str] = _COUNT_WORDS
) -> AxisSpec:
    choices = (("all", ALL),) if every else ()
    schema: dict[str, Any] = {"type": "integer", "minimum": least}
    if every:
        schema = {"anyOf": [schema, {"const": "all"}]}
    allowed = [f"whole numbers of at least {least}", *(word for word, _ in choices), *words]
    return AxisSpec(
        name=name,
        summary=summary,
        allowed=join_words(allowed),
        schema=schema,
        read=_read_count,
        words=tuple(words),
        choices=choices,
        least=least,
    )


def _switch(name: str, summary: str) -> AxisSpec:
    allowed = "true, false or auto"
    return AxisSpec(name=name, summary=summary, allowed=allowed, schema={"type": "boolean"}, read=_read_switch)


def _choice(name: str, summary: str, enum: type[IntEnum], extra: Mapping[str, Any] | None = None) -> AxisSpec:
    choices = tuple((member.name.lower(), int(member)) for member in enum)
    words = [word for word, _ in choices]
    schema: dict[str, Any] = {"enum": words}
    if extra:
        schema = {"anyOf": [schema, dict(extra)]}
    return AxisSpec(
        name=name,
        summary=summary,
        allowed=join_words([*words, "auto"]),
        schema=schema,
        read=_read_sharding if enum is Sharding else _read_choice,
        choices=choices,
    )


_HSDP = {"type": "object", "properties": {"hsdp": {}}, "required": ["hsdp"], "additionalProperties": False}
_FULL = {
    "type": "object",
    "properties": {"full": {}, "method": {}},
    "required": ["full"],
    "additionalProperties": False,
}
_ENDS = {
    "type": "object",
    "properties": {"first": {"type": "integer", "minimum": 0}, "last": {"type": "integer", "minimum": 0}},
    "minProperties": 1,
    "additionalProperties": False,
}

AXIS: dict[str, AxisSpec] = {
    spec.name: spec
    for spec in (
        _count("tp", "Tensor parallel degree."),
        _count("pp", "Pipeline parallel degree (stages)."),
        _count("vpp", "Virtual stages (model chunks) per pipeline rank."),
        _count("ep", "Expert parallel degree; 1 for dense models."),
        _count("etp", "Tensor parallel degree inside an expert."),
        _count("cp", "Context parallel degree."),
        _count("micro_batch_size", "Samples per micro-batch and data parallel rank."),
        AxisSpec(
            name="schedule",
            summary="Pipeline schedule; the names of AMD Primus are understood.",
            allowed="a name `primus-search schedules` lists, or auto",
            schema={"type": "string"},
            read=_read_schedule,
        ),
        _switch("deepep", "Fused node-aware expert dispatch and combine (DeepEP)."),
        AxisSpec(
            name="sync_free_stage",
            summary="How far MoE layers run without waiting for token counts on the host (AMD Primus stages).",
            allowed="0, 1, 2, 3 or auto",
            schema={"type": "integer", "minimum": 0, "maximum": 3},
            read=_read_stage,
        ),
        _choice("fp8", "Low-precision recipe of the linear layers.", Fp8),
        AxisSpec(
            name="recompute",
            summary="What is recomputed in backward instead of stored.",
            allowed="none, selective, full, {full: layers per virtual stage, method: block}, modules joined by '+' "
            "(core_attn, mla_up_proj, mlp, moe_act, layernorm, op_sac) or auto",
            schema={"anyOf": [{"type": "string"}, _FULL]},
            read=_read_recompute,
            choices=tuple((word, int(flag)) for word, flag in RECOMPUTE_WORDS.items()),
        ),
        _count("recompute_num_layers", "Layers per virtual stage under full recompute.", every=True),
        _choice("recompute_method", "Which layers full recompute takes.", RecomputeMethod),
        _choice("sharding", "What data-parallel ranks share instead of replicate.", Sharding, _HSDP),
        _count("shard_group", "Ranks that share one sharded copy under HSDP.", every=True),
        _switch("loss_fusion", "Fused cross-entropy: logits are never kept in full."),
        _switch("overlap_grad_reduce", "Gradient reduction runs beside backward."),
        _choice("grouped_gemm", "All experts of a rank in one kernel, or one after another.", GroupedGemm),
        _switch("sequence_parallel", "Norms and residuals split along the sequence over tensor-parallel ranks."),
        AxisSpec(
            name="pipeline_layout",
            summary="How layers are dealt to virtual stages.",
            allowed="even, balanced, {first: n, last: n}, a Megatron layout string such as 'Et*4|t*4|t*3L' or auto",
            schema={"anyOf": [{"type": "string"}, _ENDS]},
            read=_read_layout,
        ),
        _count("offload_layers", "Layers per virtual stage whose activations go to host memory.", least=0),
    )
}
