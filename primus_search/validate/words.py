"""The vocabulary of published runs: what their words for precision, recompute, schedule and flags mean here."""

import re

from primus_search.candidates import Fp8, Recompute

HARDWARE = {
    "a100": "a100_80",
    "a100-80gb": "a100_80",
    "a100-40gb": "a100_40",
    "a800": "a800",
    "h100": "h100",
    "h800": "h800",
    "h200": "h200",
    "b200": "b200",
    "b300": "b300",
    "gb200": "gb200",
    "gb300": "gb300",
    "mi250x": "mi250x",
    "mi250": "mi250x",
    "mi300x": "mi300x",
    "mi325x": "mi325x",
    "mi350x": "mi350x",
    "mi355x": "mi355x",
}
"""GPU names of published tables -> hardware files."""

_STACKS: tuple[tuple[str, str, str], ...] = (
    # pattern of the source, pattern of the flags or GPU, stack
    ("llm-foundry", "", "fsdp_2023"),
    ("fms-fsdp|foundation-model-stack", "", "fsdp_2024"),
    ("megatron-bridge", "megatron_fsdp=true", "megatron_fsdp_2026"),
    ("megatron-bridge", "", "megatron_core_2026"),
    ("dgxc|nvidia/nemo|nemo performance|megatron-lm examples", "", "nemo_2024"),
    ("mlperf", "mi[23]\\d\\d", "primus_megatron"),
    ("mlperf", "", "nemo_mlperf"),
    ("simumax", "", "megatron_te"),
    ("internevo|internlm", "", "internevo"),
    ("korthikanti", "", "megatron_2022"),
    ("sc21|narayanan", "zero-3", "deepspeed_2021"),
    ("sc21|narayanan", "", "megatron_2022"),
    ("megatron-turing|mt-nlg", "", "megatron_2022"),
    ("zero bubble", "", "megatron_2023"),
    ("megascale", "", "megatron_2023"),
    ("amd|primus|rocm", "torchtitan", "primus_torchtitan"),
    ("amd|primus|rocm", "", "primus_megatron"),
    ("torchtitan", "", "torchtitan"),
)
_DEFAULT_STACKS = {"mi": "primus_megatron", "a1": "megatron_te", "": "megatron_te"}


def stack_name(source: str, flags: str, gpu: str) -> str:
    """The software stack that a run of this source, with these flags, on this GPU was made with."""
    text, details = source.lower(), f"{flags} {gpu} {source}".lower()
    for pattern, detail, name in _STACKS:
        if re.search(pattern, text) and re.search(detail, details):
            return name
    return next(name for start, name in _DEFAULT_STACKS.items() if gpu.lower().startswith(start))


def precision(word: str) -> Fp8 | None:
    """The FP8 recipe of a precision word; None for a word nobody knows."""
    text = word.lower()
    if "fp4" in text:
        return Fp8.NVFP4
    if "mx" in text and "8" in text:
        return Fp8.MXFP8
    if "fp8" in text or "e4m3" in text:
        for key, recipe in (("delayed", Fp8.DELAYED), ("block", Fp8.BLOCKWISE), ("row", Fp8.ROWWISE)):
            if key in text:
                return recipe
        return Fp8.HYBRID
    return Fp8.NONE if "bf16" in text or "fp16" in text or text in ("16", "half") else None


_MODULES = {
    "core_attn": Recompute.CORE_ATTENTION,
    "core-attn": Recompute.CORE_ATTENTION,
    "mla_up_proj": Recompute.MLA_UP_PROJ,
    "moe_act": Recompute.MOE_ACTIVATION,
    "layernorm": Recompute.LAYERNORM,
    "rmsnorm": Recompute.LAYERNORM,
    "swiglu": Recompute.MOE_ACTIVATION,
    "op-sac": Recompute.OP_SAC,
}


def recompute(word: str) -> tuple[Recompute, int] | None:
    """Recompute flags and the number of layers (0 = all) of a recompute word; None for a word nobody knows."""
    text = word.lower()
    if text in ("none", "no", "off", "0"):
        return Recompute.NONE, 0
    if text.startswith("full"):
        return Recompute.FULL, 0
    partial = re.search(r"partial:(?:recompute_num_layers=)?(\d+)\b(?!,)", text)
    if partial and "layer ids" not in text:
        return Recompute.FULL, int(partial.group(1))
    ids = re.search(r"layer ids (\d+(?:[,-]\d+)*)", text)
    if ids:
        return Recompute.FULL, _count_ids(ids.group(1))
    flags = Recompute.NONE
    for key, flag in _MODULES.items():
        if key in text:
            flags |= flag
    if re.search(r"(?:^|[:+])mlp(?:\+|$)", text):
        flags |= Recompute.MLP
    if flags:
        return flags, 0
    if text == "selective":
        return Recompute.CORE_ATTENTION, 0
    return None


def _count_ids(text: str) -> int:
    total = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        total += int(last) - int(first) + 1 if last else 1
    return total


def schedule(word: str, vpp: int) -> str | None:
    """The name of a pipeline schedule; None for a word nobody knows."""
    text = word.lower()
    for pattern, name in (
        (r"zb-?1p", "zb-1p"),
        (r"zb-?2p", "zb-2p"),
        (r"zbv", "zbv"),
        (r"v-half", "v-half"),
        (r"v-min", "v-min"),
        (r"dualpipe-?v", "dualpipev"),
        (r"dualpipe", "dualpipe"),
        (r"zero-?bubble", "zb-h1"),
        (r"gpipe", "gpipe"),
    ):
        if re.search(pattern, text):
            return name
    if "interleaved" in text or vpp > 1:
        return "interleaved" if vpp > 1 else "1f1b"
    return "1f1b" if text in ("", "none", "1f1b", "unknown") or text.startswith("1f1b") else None


_LADDER = ("loss fusion", "deepep", "sync-free", "launch opt", "all")
"""Primus' optimisation ladder: a row called `+DeepEP` has what stands before it, too."""


def ladder(flags: str) -> set[str]:
    """The rungs of the ladder a flag text stands on, itself included; empty when it is no rung."""
    text = flags.lower().strip()
    if not text.startswith("+"):
        return set()
    for i, rung in enumerate(_LADDER):
        if text[1:].strip().startswith(rung):
            return set(_LADDER[: i + 1])
    return set()


_UNFUSED = (("primus", "llama-3.2-1b"),)
"""Source and model of runs whose published configuration leaves the fused loss commented out."""


def fused_loss(source: str, model: str, flags: str, by_default: bool) -> bool:
    """Whether the loss is fused: as a rung of a ladder says, as the published configuration says, or as the stack does.

    torchtitan compiles its loss since 2025; runs before wrote every step of it to memory.
    """
    text, name = source.lower(), model.lower()
    if flags.lower().startswith(("baseline", "+")):
        return "loss fusion" in ladder(flags)
    if any(a in text and b in name for a, b in _UNFUSED):
        return False
    return by_default or bool(re.search(r"torchtitan.*_2025", text))


def setting(flags: str, key: str) -> str | None:
    """The value of `key=value` in a flag text; None when absent or the text says None."""
    match = re.search(rf"\b{re.escape(key)}=([^;]*)", flags)
    if match is None:
        return None
    value = match.group(1).strip()
    return None if value.lower() in ("none", "", "[]", "none/none") else value
