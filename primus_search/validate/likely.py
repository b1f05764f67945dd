"""The software stack of a run whose source is not known: what its words say, else what is public and usual.

A framework that is named is taken at its public defaults. What its vendor's recipes have (graphs, layouts, batch-level
overlap, low-precision recipes of a year) tells a recipe; Megatron without any of them is Megatron as others run it.
Where no word says anything, how the optimizer is sharded tells a family and the device its vendor.

Sources of the defaults: megatron/training/arguments.py (NVIDIA/Megatron-LM), DeepSpeed docs/_pages/config-json.md,
pytorch/torchtitan train_configs, NVIDIA-NeMo/Automodel recipes; PaddleNLP's llm/ scripts shard as ZeRO does over eager
modules (use_flash_attention alone is fused).
"""

import re

from primus_search.candidates import Sharding
from primus_search.declare.hardware import Hardware
from primus_search.validate import words
from primus_search.validate.rows import Run

HOPPER = "sm90"

TORCHTITAN, MEGATRON_FSDP, DEEPSPEED, PLAIN = "torchtitan", "megatron_fsdp_2026", "deepspeed", "megatron_lm"
AUTOMODEL, MAXTEXT, XTUNER = "automodel", "maxtext", "xtuner"

WITHOUT_RUNS = (DEEPSPEED, PLAIN, AUTOMODEL, MAXTEXT, XTUNER)
"""What may be named or assumed although no run of it is in a fit."""

_NAMED = (
    (r"torch ?titan|fsdp2", TORCHTITAN),
    (r"deepspeed|llama-?factory|paddle|transformers\b|huggingface", DEEPSPEED),
)
"""Words and the stack of the framework that they name. Hugging Face trains under FSDP or ZeRO: the sharding says which,
and is asked first."""

_RECIPE = r"cuda[_ ]graph|hybridep|pp_layout=|a2a_overlap|\bnemo\b|megatron-bridge"
"""What only a vendor's performance recipe has, or names. One switch more than the defaults (tensor-parallel overlap,
DeepEP) is read as that switch."""

_RECENT = r"mx-?fp8|fp4|fp8-(?:current|block)|sub-?channel"
"""FP8 and FP4 recipes that came with the vendor's stacks of 2025."""


def likely_stack(run: Run, hardware: Hardware) -> str:
    """What a run of a source nobody knows was most likely made with.

    docs/fidelity.md has the error that this costs where the source is known.
    """
    text = " ".join(run.word(name) for name in ("stack", "source", "flags", "notes")).lower()
    word = run.word("fsdp").lower()
    is_sharded = words.sharding(word) in (Sharding.FSDP2, Sharding.HSDP)
    if hardware.accelerator.vendor == "amd":
        return "primus_torchtitan" if is_sharded or "torchtitan" in text else "primus_megatron"
    if is_sharded and "megatron" in text:
        return MEGATRON_FSDP
    if "automodel" in text or (is_sharded and re.search(r"fsdp2-te|fsdp2 \+ te\b|transformer engine", text)):
        return AUTOMODEL
    if "fsdp" in word or "torchtitan" in text:
        return TORCHTITAN
    named = next((stack for pattern, stack in _NAMED if re.search(pattern, text)), None)
    if named is not None:
        return named
    if is_sharded:
        return DEEPSPEED
    if re.search(_RECIPE, text) or re.search(_RECENT, run.word("precision").lower()):
        return _of_recipe(run, hardware)
    return PLAIN


def _of_recipe(run: Run, hardware: Hardware) -> str:
    """The vendor's own stack: dense recipes of Hopper are mostly of 2024, those of experts and Blackwell later."""
    is_moe = (run.whole("num_experts", 0) or 0) > 1
    if hardware.accelerator.arch == HOPPER and not is_moe:
        return "nemo_2024"
    return hardware.default_stack or "megatron_core_2026"
