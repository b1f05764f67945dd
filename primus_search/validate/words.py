"""The vocabulary of published runs: what their words for precision, recompute, schedule and flags mean here."""

import re

from primus_search.candidates import Fp8, Recompute, Sharding

_STACKS: tuple[tuple[str, str, str], ...] = (
    # pattern of the source, pattern of the flags, GPU or source, stack
    ("llm-foundry|mosaicml|composer", "", "fsdp_2023"),
    ("fms-fsdp|foundation-model-stack", "", "fsdp_2024"),
    ("megatron-bridge|megatron-moe-modelzoo|megatron-lm", "megatron_fsdp=(?:true|v\\d)", "megatron_fsdp_2026"),
    ("megatron-bridge|megatron-moe-modelzoo", "", "megatron_core_2026"),
    ("megatron-lm", "hybridep|a2a_overlap=true|cuda_graph=(?!none)", "megatron_core_2026"),
    ("automodel", "", "automodel"),
    ("dgxc|nvidia/nemo|nemo performance|megatron-lm examples", "", "nemo_2024"),
    ("mlperf|training_results_v", "mi[23]\\d\\d", "primus_megatron"),
    ("mlperf|training_results_v", "hybridep|pp_layout=|mlperf training v6|training_results_v6", "megatron_core_2026"),
    ("mlperf|training_results_v", "", "nemo_mlperf"),
    ("simumax", "", "megatron_te"),
    ("xtuner", "", "xtuner"),
    ("maxtext", "", "maxtext"),
    ("internevo|internlm", "", "internevo"),
    ("korthikanti", "", "megatron_2022"),
    ("sc21|narayanan", "zero-3", "deepspeed_2021"),
    ("sc21|narayanan", "", "megatron_2022"),
    ("megatron-turing|mt-nlg", "", "megatron_2022"),
    ("bigscience|megatron-deepspeed", "", "megatron_deepspeed"),
    ("zero bubble", "", "megatron_2023"),
    ("megascale", "", "megatron_2023"),
    ("amd|primus|rocm", "torchtitan", "primus_torchtitan"),
    ("amd|primus|rocm", "", "primus_megatron"),
    ("torchtitan", "", "torchtitan"),
)


def stack_name(source: str, flags: str, gpu: str) -> str | None:
    """The software stack that a run of this source, with these flags, on this GPU was made with; None: nobody knows."""
    text, details = source.lower(), f"{flags} {gpu} {source}".lower()
    for pattern, detail, name in _STACKS:
        if re.search(pattern, text) and re.search(detail, details):
            return name
    return None


def is_fork(source: str) -> bool:
    """Whether a source says that it changed the software it names, or wrote it to try something."""
    return bool(re.search(r"(?<![a-z])(?:fork(?:ed)?|patched|modified|prototype)(?![a-z])", source.lower()))


def precision(word: str) -> Fp8 | None:
    """The FP8 recipe of a precision word; None for a word nobody knows."""
    text = word.lower()
    if "fp4" in text:
        return Fp8.NVFP4
    if "mx" in text and "8" in text:
        return Fp8.MXFP8
    if "fp8" in text or "e4m3" in text:
        for key, recipe in _SCALINGS:
            if re.search(key, text):
                return recipe
        return Fp8.HYBRID
    return Fp8.NONE if re.search(r"b?(?:fp|float)16|bf16|^16(?:-mixed)?$|^half$", text) else None


def is_half(word: str) -> bool:
    """Whether a precision word is FP16, not BF16."""
    return bool(re.search(r"(?<!b)(?:fp|float)16|^16-mixed$|^half$", word.lower()))


_SCALINGS = (
    (r"delayed|\bds\b|^dsfp8", Fp8.DELAYED),
    (r"block|sub-?channel|\bsc\b|^scfp8", Fp8.BLOCKWISE),
    (r"row", Fp8.ROWWISE),
)
"""How FP8 is scaled; DS, CS and SC are NVIDIA's short forms of delayed, current and sub-channel scaling."""


_WHOLE_MODULES = r"(?<![\w-])(?:moe|shared_experts)(?![\w-])"
"""Megatron's modules that no flag here stands for: recompute of whole expert layers."""

_MODULES = {
    "core_attn": Recompute.CORE_ATTENTION,
    "core-attn": Recompute.CORE_ATTENTION,
    "core attention": Recompute.CORE_ATTENTION,
    "mla_up_proj": Recompute.MLA_UP_PROJ,
    "moe_act": Recompute.MOE_ACTIVATION,
    "layernorm": Recompute.LAYERNORM,
    "rmsnorm": Recompute.LAYERNORM,
    "swiglu": Recompute.MOE_ACTIVATION,
    "op-sac": Recompute.OP_SAC,
    "selective op": Recompute.OP_SAC,
}


def recompute(word: str) -> tuple[Recompute, int] | None:
    """Recompute flags and the number of layers (0 = all) of a recompute word; None for a word nobody knows."""
    text = word.lower().strip()
    if text in ("none", "no", "off", "0", "false") or re.match(r"(?:no|without) ", text):
        return Recompute.NONE, 0
    if re.match(r"full|uniform|(?:activation|gradient) checkpointing$", text) or text in ("yes", "all", "true"):
        return Recompute.FULL, 0
    if re.search(_WHOLE_MODULES, text):
        return None
    partial = re.search(r"partial:(?:recompute_num_layers=)?(\d+)\b(?!,)", text)
    if partial and "layer ids" not in text:
        return Recompute.FULL, int(partial.group(1))
    if partial_ids(text):
        return Recompute.FULL, len(partial_ids(text))
    flags = Recompute.NONE
    for key, flag in _MODULES.items():
        if key in text:
            flags |= flag
    if re.search(r"(?<![\w-])mlp(?![\w-])", text):
        flags |= Recompute.MLP
    if flags & Recompute.OP_SAC and re.search(r"\+ ?grouped", text):
        flags |= Recompute.OP_SAC_EXPERTS
    if flags:
        return flags, 0
    if text == "selective":
        return Recompute.CORE_ATTENTION, 0
    return None


def partial_ids(word: str) -> tuple[int, ...]:
    """Layers, counted over the whole model from 0, that are recomputed: `partial:layer ids 0,1,4-6`; none where no such
    list is given."""
    found = re.search(r"layer ids (\d{1,5}(?:[,-]\d{1,5})*)", word.lower())
    numbers: set[int] = set()
    for part in found.group(1).split(",") if found else ():
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(numbers))


_SHARDING = (
    (r"(?:zero|stage)[- _=]*2|no reshard|shard_grad_op", Sharding.ZERO2),
    (r"hsdp|hybrid_shard", Sharding.HSDP),
    (r"fsdp|(?:zero|stage)[- _=]*3|full_shard", Sharding.FSDP2),
    (r"(?:zero|stage)[- _=]*1|dist", Sharding.DISTRIBUTED_OPTIMIZER),
    (r"^(none|ddp|dp|no|0|n/?a|-|)$", Sharding.NONE),
)


def sharding(word: str) -> Sharding | None:
    """What is sharded over replicas; None for a word nobody knows."""
    text = word.lower().strip()
    return next((found for pattern, found in _SHARDING if re.search(pattern, text)), None)


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
        (r"zero[- ]?bubble|zb-?h1", "zb-h1"),
        (r"gpipe", "gpipe"),
    ):
        if re.search(pattern, text):
            return name
    if "interleaved" in text or vpp > 1:
        return "interleaved" if vpp > 1 else "1f1b"
    return "1f1b" if text in ("", "none", "1f1b", "unknown", "n/a", "-") or text.startswith("1f1b") else None


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


_COMPILED_LOSS = (2025, 4)
"""Year and month: 47.7 GiB of Llama 3 8B in 2025-03 hold the loss as it was, 39.1 GiB in 2025-08 do not (pytorch/ao
torchao/float8/README.md)."""


def date(text: str) -> tuple[int, int]:
    """Year and month that a source names, (0, 0) where it names none: `llama3_h100_202412.md`, `(2025-08, ...)`."""
    found = re.search(r"(?<!\d)(20[12]\d)[-_]?(0[1-9]|1[0-2])(?!\d)", text)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


_CUDNN_ATTENTION = (2025, 10)
"""Year and month since which torchtitan asks for cuDNN's attention first (torchtitan/models/attention.py)."""


def is_before_cudnn(source: str) -> bool:
    """Whether a run of torchtitan is older than its use of cuDNN's attention."""
    return "torchtitan" in source.lower() and (0, 0) < date(source) < _CUDNN_ATTENTION


_RECENT_TITAN = (2026, 5)
"""torchtitan since then runs head and loss in eight pieces (pull request 2937, merged 2026-04; num_chunks of its loss),
and its checkpoint by operation sees into compiled modules (`inductor_compiled_code` is on its list of what to keep)."""

_CHUNKS = 8


def is_recent_titan(source: str, stack: str) -> bool:
    """Whether a run is of torchtitan as it is since spring 2026, by the date that its source names."""
    return "torchtitan" in f"{source} {stack}".lower() and date(source) >= _RECENT_TITAN


def fused_loss(source: str, model: str, flags: str, by_default: bool, stack: str = "") -> bool:
    """Whether the loss is fused: as a rung of a ladder says, as the published configuration says, or as the stack does.

    torchtitan compiles its loss since spring 2025, if it compiles at all; runs before wrote every step of it to memory.
    stack: the software as the table names it.
    """
    text, name = f"{source} {stack}".lower(), model.lower()
    if flags.lower().startswith(("baseline", "+")):
        return "loss fusion" in ladder(flags)
    if any(a in text and b in name for a, b in _UNFUSED):
        return False
    if has(flags.lower().replace("-", "_"), "cross_entropy_loss_fusion"):
        return True
    if is_eager(flags):
        return by_default
    return by_default or ("torchtitan" in text and date(text) >= _COMPILED_LOSS)


def loss_chunks(source: str, flags: str, stack: str) -> int:
    """Pieces of a micro-batch that head and loss run through one by one: as flags say, or as torchtitan of its day."""
    said = re.search(r"\b(\d{1,3}|two|four|eight|sixteen) (?:loss|logits?) chunks?\b", flags.lower())
    if said:
        return _NUMERALS.get(said.group(1)) or max(int(said.group(1)), 1)
    return _CHUNKS if is_recent_titan(source, stack) else 1


_NUMERALS = {"two": 2, "four": 4, "eight": 8, "sixteen": 16}


def is_eager(flags: str) -> bool:
    """Whether modules run one operation after the other: `no compile`, or `eager` of more than attention."""
    return bool(re.search(r"no (?:torch\.)?compile|(?:^|; ?)eager(?:$|;)", flags.lower()))


def has(text: str, word: str) -> bool:
    """Whether a flag text (in lower case) names a feature without switching it off: `no X`, `X=false`, `X off`."""
    off = rf"(?:\b(?:no|without) {re.escape(word)}|{re.escape(word)}(?: |[=:] ?)(?:off|false|no|none|0)\b)"
    return word in text and not re.search(off, text)


def has_whole_graph(text: str) -> bool:
    """Whether a step is replayed as a graph: named without a scope (`cuda_graph`, `CUDA graphs`), so all of it."""
    return any(has(text, word) for word in ("cuda graph", "cuda_graph")) and not re.search(r"cuda_graph\s*=", text)


def is_deterministic(text: str) -> bool:
    """Whether every kernel has to give the same bits twice: `deterministic`, `deterministic mode`."""
    return has(text, "deterministic") and bool(re.search(r"(?<!non-)(?<!not )\bdeterministic\b", text))


def trains_adapters(text: str) -> bool:
    """Whether most weights stay as they are: `LoRA`, `QLoRA`, `PEFT`."""
    return any(has(text, word) and re.search(rf"(?<![\w-])q?{word}\b", text) for word in ("lora", "peft"))


def has_fp8_attention(text: str) -> bool:
    """Whether attention runs in FP8, too: `fp8_dot_product_attention`, an attention recipe of its own."""
    return has(text, "fp8_dot_product_attention") or bool(re.search(r"attention recipe float8|\bfp8 attention", text))


def has_dropout(text: str) -> bool | None:
    """Whether dropout is applied; None where nothing is said."""
    rate = re.search(r"\bdropout=(\d{1,3}(?:\.\d{1,9})?)", text)
    return float(rate.group(1)) > 0.0 if rate else None


def has_deepep(text: str) -> bool:
    """Whether tokens travel by DeepEP or the like of it."""
    return has(text, "deepep") or has(text, "hybridep")


def lists_deepep(notes: str) -> bool:
    """Whether notes (in lower case) list DeepEP among what a run was made with: `torch.compile, DeepEP v1; FP32`."""
    return bool(re.search(r"(?:^|[,;] )deepep(?: v\d)?(?=[,;.]|$)", notes))


def has_legacy_experts(text: str) -> bool:
    """Whether experts run one product after another: by name, or grouped products switched off."""
    return "legacy grouped" in text or bool(re.search(r"moe_grouped_gemm\s*[=:]\s*(false|0|no|off)\b", text))


MOST_CAPACITY = 64.0
"""No expert is given room for more than this many times its share; beyond is a slip of the pen."""


def padded_capacity(text: str) -> float | None:
    """Rows of an expert over its even share, where tokens beyond are dropped and what is missing is padded."""
    found = re.search(r"capacity[-_ ]factor[=: ]+(\d+(?:\.\d+)?)\b.*\bpadded\b", text)
    return min(max(float(found.group(1)), 1.0), MOST_CAPACITY) if found else None


_MASKED = r"block-?diagonal|\bthd pack|packed in thd|\bvarlen\b|(?:attention|document) mask per|\bswift\b.*\bpack"
"""How tables say that packed documents do not attend to each other. ms-swift packs for variable-length kernels alone:
modelscope/ms-swift docs/source_en/Instruction/Command-line-parameters.md, packing."""

_CORPORA = ((r"\bc4\b", 427.0), (r"\bdclm\b", 1333.0))
"""Mean tokens of a document: C4.EN has 156e9 tokens in 365e6 documents (Dodge et al. 2021, arXiv:2104.08758),
DCLM-baseline 4e12 in 3e9 (arXiv:2406.11794)."""

_ANY_CORPUS = 1000.0
"""Likewise where nobody says: between those two."""

_SPREAD = 2.0
"""A token's document is longer than the mean one: E[l^2] / E[l]^2, which is 2 for an exponential distribution."""


def document_length(text: str) -> float:
    """Tokens of the document a token is in, where packed documents are masked from each other; 0 where they are not."""
    if not re.search(_MASKED, text):
        return 0.0
    said = re.search(r"mean document(?: length)?(?: of)?[ =:]+(\d{1,7})\b", text)
    if said:
        return _SPREAD * max(float(said.group(1)), 1.0)
    return _SPREAD * next((mean for corpus, mean in _CORPORA if re.search(corpus, text)), _ANY_CORPUS)


def deals_experts_in_turn(text: str) -> bool:
    """Whether a benchmark's gate deals experts in turn: `fake balanced gate` (NeMo Automodel), round-robin routing.

    NVIDIA-NeMo/Automodel components/moe/layers.py, FakeBalancedGate; pytorch/torchtitan models/moe/moe.py,
    _debug_force_load_balance. Megatron's forced balance draws random logits instead.
    """
    return bool(re.search(r"fake[- ]balanced[- ]gate|round[- ]robin (?:routing|experts?|gate)", text))


def lacks_flash(text: str) -> bool:
    """Whether attention writes its scores to memory: `no flash attention`, `without flash`, `eager attention`."""
    return bool(re.search(r"\b(?:no|without) flash|\beager attention", text))


def pool_share(flags: str, notes: str) -> float | None:
    """Share of the device that XLA's pool takes: `XLA pool .97`; flags, which are of one run, before notes of many."""
    for text in (flags, notes):
        found = re.search(r"\bXLA pool (?:fraction )?(0?\.\d{1,3})\b", text, re.IGNORECASE)
        if found and float(found.group(1)) > 0.0:
            return float(found.group(1))
    return None


def keeps_float32(text: str) -> bool:
    """Whether weights, their gradients and moments are FP32: MaxText's `weight_dtype float32`, or its default.

    MaxText configs/base.yml: weight_dtype float32; a configuration of half-precision weights says so.
    """
    return bool(re.search(r"\bweight_dtype (?:float32|fp32|not set\b[^;]*\bfloat32)", text.lower()))


def offloaded_layers(flags: str) -> int:
    """Layers whose activations are offloaded, over the whole model."""
    found = re.match(r"\d{1,4}", setting(flags, "cpu_offload_layers") or "")
    return int(found.group()) if found else 0


def setting(flags: str, key: str) -> str | None:
    """The value of `key=value` in a flag text; None when absent or the text says None."""
    match = re.search(rf"\b{re.escape(key)}=([^;]*)", flags)
    if match is None:
        return None
    value = match.group(1).strip()
    return None if value.lower() in ("none", "", "[]", "none/none") else value


OF_RECIPE = "recipe"


def layout(flags: str) -> str | None:
    """The layout string of a pipeline; None where there is none, or only the word that it is the recipe's."""
    text = setting(flags, "pp_layout")
    return None if text == OF_RECIPE else text
