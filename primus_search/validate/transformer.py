"""The transformer of a measured run: sizes from its columns, what no column says from its family."""

import re
from dataclasses import replace

from primus_search.model import LatentAttention, MixtureOfExperts, Model
from primus_search.validate import words
from primus_search.validate.rows import Run, Skipped

DEFAULT_VOCABULARY = 50304
"""GPT-2's vocabulary padded to 128, where a GPT run does not print its own (Zero Bubble: "about 50k")."""

AGREES = 0.01
"""A parameter count this close to the published one settles which variant of a model it is."""

_FIRST_GENERATION = re.compile(
    r"gpt-?[0-9.]|gpt-?neox|pythia|^mpt|^opt|bloom|falcon|turing|mt-nlg|megatron-?[0-9]|nemotron"
)
"""Layer norms, no gate in the MLP, tied embeddings: the GPT-2 family. Nemotron keeps the norms and drops the biases."""

_OSS = re.compile(r"gpt-?_?oss")
_OSS_CLAMP = 7.0
"""Bias on every linear, attention sinks, clamped activation (swiglu_limit of openai/gpt-oss-120b config.json)."""

_WINDOWS = (
    # family, window in tokens, layers of a period that have it
    (r"gpt-?_?oss", 128, (True, False)),
    (r"gemma-?2", 4096, (True, False)),
    (r"gemma-?3", 1024, (True, True, True, True, True, False)),
)
"""Sliding windows by family: gpt-oss model card (arXiv:2508.10925), Gemma 2 (arXiv:2408.00118), Gemma 3
(arXiv:2503.19786)."""


def build_model(run: Run) -> Model:
    """The transformer of a run. Gated or not, tied or not: whichever agrees with the published parameter count."""
    name = run.word("model")
    text = f"{name} {run.word('notes')}".lower()
    hidden, heads, layers = run.count("hidden"), run.count("heads"), run.count("num_layers")
    is_oss = bool(_OSS.search(name.lower()))
    is_old = bool(_FIRST_GENERATION.search(name.lower())) and not is_oss
    has_bias = is_oss or (is_old and "nemotron" not in text)
    experts, dense, period = _experts(run), run.parts("first_dense_layers"), _moe_period(run)
    try:
        plain = Model(
            name=name,
            num_layers=layers,
            hidden=hidden,
            ffn_hidden=run.parts("ffn_hidden") or 4 * hidden,
            num_heads=heads,
            num_kv_heads=run.parts("kv_heads") or heads,
            head_dim=run.parts("head_dim") or max(hidden // heads, 1),
            vocab_size=run.parts("vocab") or DEFAULT_VOCABULARY,
            latent=_latent(run, hidden),
            moe=experts,
            moe_layers=[experts is not None and i >= dense and (i + 1) % period == 0 for i in range(layers)],
            windows=_windows(text, layers),
            norm="layernorm" if is_old else "rmsnorm",
            has_linear_bias=has_bias,
            has_qkv_bias="qwen2" in text,
            has_qk_norm="qwen3" in text,
            has_attention_sinks=is_oss,
            activation_clamp=_OSS_CLAMP if is_oss else 0.0,
            learned_positions=run.parts("seq_len") if has_bias and is_old else 0,
            num_mtp_layers=_mtp(run),
            source=run.word("source"),
        )
    except ValueError as error:
        raise Skipped(f"no such model: {error}") from None
    return _closest(plain, run.number("params_b"), prefers_gate=not is_old)


def _closest(plain: Model, params_b: float | None, *, prefers_gate: bool) -> Model:
    variants = [
        replace(plain, is_gated=gated, is_tied=tied)
        for gated in (prefers_gate, not prefers_gate)
        for tied in (not prefers_gate, prefers_gate)
    ]
    if not params_b or params_b < 0.0:
        return variants[0]
    errors = []
    for variant in variants:
        errors.append(round(abs(variant.total_params / 1e9 / params_b - 1.0), 2))
        if errors[-1] < AGREES:
            break
    return variants[errors.index(min(errors))]


def _experts(run: Run) -> MixtureOfExperts | None:
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


def _moe_period(run: Run) -> int:
    """Layers from one of experts to the next: `moe_layer_freq=2` (Llama 4 Maverick, whose first layer is dense)."""
    found = re.fullmatch(r"[1-9]\d{0,2}", words.setting(run.word("flags"), "moe_layer_freq") or "")
    return int(found.group()) if found else 1


def _latent(run: Run, hidden: int) -> LatentAttention | None:
    """DeepSeek's sizes, which every published MLA model shares; small ones do not compress queries."""
    if not run.parts("mla"):
        return None
    return LatentAttention(
        q_lora_rank=1536 if hidden > 2048 else 0,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    )


def _windows(text: str, layers: int) -> list[int]:
    for family, window, period in _WINDOWS:
        if re.search(family, text):
            return [window if period[i % len(period)] else 0 for i in range(layers)]
    return [0] * layers


def _mtp(run: Run) -> int:
    """MTP modules: DeepSeek-V3 as NVIDIA's recipes train it; a layout string says so with an m, flags with `no MTP`."""
    if re.search(r"\bno mtp\b", run.word("flags").lower()):
        return 0
    layout = words.layout(run.word("flags"))
    if layout is not None:
        return layout.count("m")
    is_v3 = re.search(r"deepseek-?v3$", run.word("model").lower())
    return 1 if is_v3 and re.search("nvidia", run.word("source").lower()) else 0
