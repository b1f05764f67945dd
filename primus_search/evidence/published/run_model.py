"""The model of a published run: the transformer of its sizes, and its pipeline layout as the table prints it."""

from dataclasses import replace
from typing import Any

from primus_search.evidence.published.run_table import PublishedRun, Skipped
from primus_search.files.word_rules import every, vocabulary
from primus_search.values.model import LatentAttention, MixtureOfExperts, Model

AGREES = 0.01
"""A parameter count this close to the published one settles which variant of a model it is."""


def build_model(run: PublishedRun) -> Model:
    """The transformer of a run. Gated or not, tied or not: whichever agrees with the published parameter count."""
    hidden, heads, layers = run.count("hidden"), run.count("heads"), run.count("num_layers")
    experts, dense = _experts(run), run.parts("first_dense_layers")
    period = run.told("moe_layer_freq")
    family: dict[str, Any] = {}
    for fields in every(vocabulary("models")["families"], run.words):
        family |= fields
    prefers_gate = family.pop("prefers_gate", True)
    has_positions = family.pop("has_learned_positions", False)
    try:
        plain = Model(
            name=run.word("model"),
            num_layers=layers,
            hidden=hidden,
            ffn_hidden=run.parts("ffn_hidden") or 4 * hidden,
            num_heads=heads,
            num_kv_heads=run.parts("kv_heads") or heads,
            head_dim=run.parts("head_dim") or max(hidden // heads, 1),
            vocab_size=run.parts("vocab") or run.told("vocabulary", file="models"),
            latent=_latent(run, hidden),
            moe=experts,
            moe_layers=[experts is not None and i >= dense and (i + 1) % period == 0 for i in range(layers)],
            windows=_windows(run, layers),
            learned_positions=run.parts("seq_len") if has_positions else 0,
            num_mtp_layers=run.told("num_mtp_layers", pipeline_layout(run).count("m")),
            source=run.word("source"),
            **family,
        )
    except ValueError as error:
        raise Skipped(f"no such model: {error}") from None
    return _closest(plain, run.number("params_b"), prefers_gate=prefers_gate)


OF_RECIPE = "recipe"
"""What a table writes for a pipeline layout that the vendor's recipe has, without printing it."""


def pipeline_layout(run: PublishedRun) -> str:
    """The layout string of a run's pipeline; empty where there is none, or only the word that it is the recipe's."""
    return "" if has_layout_of_recipe(run) else str(run.told("pp_layout", ""))


def has_layout_of_recipe(run: PublishedRun) -> bool:
    """Whether a run has its recipe's own pipeline layout, which its table does not print."""
    return bool(run.told("pp_layout", "") == OF_RECIPE)


def _closest(plain: Model, params_b: float | None, *, prefers_gate: bool) -> Model:
    variants = [
        replace(plain, is_gated=gated, is_tied=tied)
        for gated in (prefers_gate, not prefers_gate)
        for tied in (not prefers_gate, prefers_gate)
    ]
    if not params_b or params_b < 0.0:
        return variants[0]
    errors = [round(abs(variant.total_params / 1e9 / params_b - 1.0), 2) for variant in variants]
    agreeing = (i for i, error in enumerate(errors) if error < AGREES)
    return variants[next(agreeing, errors.index(min(errors)))]


def _experts(run: PublishedRun) -> MixtureOfExperts | None:
    experts = run.parts("num_experts")
    if experts < 2:
        return None
    inner = run.count("moe_ffn")
    return MixtureOfExperts(
        num_experts=experts,
        top_k=run.count("topk"),
        expert_ffn_hidden=inner,
        shared_ffn_hidden=run.parts("shared_experts") * inner,
    )


def _latent(run: PublishedRun, hidden: int) -> LatentAttention | None:
    if not run.parts("mla"):
        return None
    sizes = dict(run.told("latent", file="models"))
    if hidden <= sizes.pop("compressed_above_hidden"):
        sizes["q_lora_rank"] = 0
    return LatentAttention(**sizes)


def _windows(run: PublishedRun, layers: int) -> list[int]:
    found = run.told("windows", file="models", default={"tokens": 0, "period": [0]})
    return [found["tokens"] * found["period"][i % len(found["period"])] for i in range(layers)]
