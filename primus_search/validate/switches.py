"""A software stack with what the flags of one run switch on or off."""

import re
from dataclasses import replace

from primus_search.accelerator import Accelerator
from primus_search.cost.memory.activations import INPUTS
from primus_search.stack import Stack
from primus_search.validate import words
from primus_search.validate.rows import Run

MOST_NUMBER_BYTES = 16.0
"""No framework keeps more bytes of gradients or of a moment per parameter: `gradient_B=6` is BF16 beside FP32."""

HOPPER = "sm90"


def switched(stack: Stack, run: Run, acc: Accelerator) -> Stack:
    """The stack with what a run's flags switch on or off on that device."""
    stack = _graphs(stack, run)
    stack = _overlaps(stack, run)
    stack = _number_formats(stack, run)
    stack = _attention(stack, run, acc)
    stack = _offloads(stack, run)
    return _fusions(stack, run)


def _graphs(stack: Stack, run: Run) -> Stack:
    graph = (words.setting(run.word("flags"), "cuda_graph") or "").lower()
    if "full_iteration" in graph:
        return replace(stack, cuda_graph="full" if not graph.startswith("none") else stack.cuda_graph)
    if "attn" in graph:
        return replace(stack, cuda_graph="partial")
    if "moe_router" in graph:
        return replace(stack, cuda_graph="router")
    if words.has_whole_graph(run.word("flags").lower()):
        return replace(stack, cuda_graph="full")
    return stack


def _overlaps(stack: Stack, run: Run) -> Stack:
    text = run.word("flags").lower()
    if "a2a_overlap=true" in text:
        stack = replace(stack, expert_overlap=stack.batch_expert_overlap)
    if "cp_comm=a2a" in text:
        stack = replace(stack, cp_comm="a2a")
    if any(words.has(text, word) for word in ("tp_comm_overlap", "tp overlap", "tp comm overlap", "asynctp")):
        stack = replace(stack, tensor_overlap=stack.switched_tensor_overlap)
    return stack


def _number_formats(stack: Stack, run: Run) -> Stack:
    flags, text = run.word("flags"), run.word("flags").lower()
    if "mixed_precision=pure" in text:
        stack = replace(
            stack, gradient_bytes=2.0, gradient_comm_bytes=2.0, master_weight_bytes=0.0, moment_bytes=2.0,
            memory=replace(stack.memory, weight_bytes=2.0, sharded_gradient_bytes=2.0),
        )  # fmt: skip
    if words.keeps_float32(f"{flags}; {run.word('notes')}"):
        stack = _with_float32_states(stack)
    if "precision-aware" in text:
        stack = replace(stack, gradient_bytes=2.0, moment_bytes=2.0)
    if words.is_half(run.word("precision")) and stack.fp16_gradient_bytes:
        half = stack.fp16_gradient_bytes
        stack = replace(stack, gradient_bytes=half, gradient_comm_bytes=half)
    gradient, moment = _width(flags, "gradient_B"), _width(flags, "moment_B")
    return replace(stack, gradient_bytes=gradient or stack.gradient_bytes, moment_bytes=moment or stack.moment_bytes)


def _with_float32_states(stack: Stack) -> Stack:
    """FP32 weights that are their own masters, with FP32 moments: 12 bytes per parameter before gradients."""
    memory = replace(stack.memory, weight_bytes=4.0, sharded_gradient_bytes=4.0)
    return replace(stack, gradient_bytes=4.0, master_weight_bytes=0.0, moment_bytes=4.0, memory=memory)


def _width(flags: str, key: str) -> float | None:
    """Bytes per parameter that `key=2` names."""
    found = re.match(r"[\d.]+$", words.setting(flags, key) or "")
    width = float(found.group()) if found else 0.0
    return width if 0.0 < width <= MOST_NUMBER_BYTES else None


def _attention(stack: Stack, run: Run, acc: Accelerator) -> Stack:
    """The attention kernel that flags and notes name.

    cuDNN's backward is deterministic on Hopper alone, so Transformer Engine takes FlashAttention-2 elsewhere: its
    pytorch/attention/dot_product_attention/utils.py, get_attention_backend, "Filter: Determinism".
    """
    text = f"{run.word('flags')} {run.word('notes')}".lower()
    if words.lacks_flash(text):
        return replace(stack, attention_kernel="unfused")
    if re.search(r"flex[- ]?att", text):
        return replace(stack, attention_kernel="triton")
    if words.is_before_cudnn(run.word("source")):
        return replace(stack, attention_kernel="sdpa")
    if stack.attention_kernel != "cudnn":
        return stack
    if words.is_deterministic(run.word("flags").lower()) and acc.arch != HOPPER:
        return replace(stack, attention_kernel="flash2")
    if words.has_fp8_attention(text) and "cudnn_fp8" in acc.attention.kernels:
        return replace(stack, attention_kernel="cudnn_fp8")
    return stack


def _offloads(stack: Stack, run: Run) -> Stack:
    """Modules whose inputs wait on the host: `offload_modules=expert_fc1,moe_act`; a name nobody knows stays here."""
    named = re.findall(r"\w+", words.setting(run.word("flags"), "offload_modules") or "")
    away = tuple(module for module in INPUTS if module in named)
    return replace(stack, memory=replace(stack.memory, offloaded_modules=away)) if away else stack


def _fusions(stack: Stack, run: Run) -> Stack:
    text = run.word("flags").lower()
    if words.has(text, "fused norm"):
        stack = replace(stack, has_fused_norm=True)
    is_eager = words.is_eager(run.word("flags"))
    chunks = words.loss_chunks(run.word("source"), run.word("flags"), run.word("stack"))
    hides = not is_eager and not words.is_recent_titan(run.word("source"), run.word("stack"))
    hides = hides and stack.memory.hides_expert_layers
    pool = words.pool_share(run.word("flags"), run.word("notes")) if stack.memory.device_share < 1.0 else None
    memory = replace(
        stack.memory, loss_chunks=max(float(chunks), stack.memory.loss_chunks), hides_expert_layers=hides,
        device_share=pool or stack.memory.device_share,
    )  # fmt: skip
    stack = replace(stack, memory=memory)
    if is_eager:
        stack = replace(
            stack, has_fused_norm=False, has_fused_activation=False, has_fused_rope=False, has_fused_residual=False,
            copies_gathered=True,
        )  # fmt: skip
    if re.search(r"\bno gradient[- ]accumulation[- ]fusion", f"{text} {run.word('notes').lower()}"):
        stack = replace(stack, has_gradient_accumulation_fusion=False)
    if words.padded_capacity(f"{text} {run.word('notes').lower()}") is not None:
        stack = replace(stack, memory=replace(stack.memory, has_room_for_every_row=False))
    has_dropout = words.has_dropout(text)
    return stack if has_dropout is None else replace(stack, has_dropout=has_dropout)
