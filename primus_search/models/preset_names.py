"""The preset that a name stands for: of the hub, of a folder or a cache, of a model that was trained further.

model_named("meta-llama/Llama-3.1-8B-Instruct", {})      # the preset llama3.1_8b
"""

import re
from collections.abc import Mapping

from primus_search.files.known_keys import key_table
from primus_search.models.presets import load_preset, presets
from primus_search.values.model import Model

_KIND = re.compile(
    r"(?:[-_](?:instruct|base|chat|hf|it|bf16|fp8|nvfp4|thinking|config|source|dequantized|checkpoints|int4|int8|awq|gptq|bnb|unsloth|4bit|mlx|sft|\d{4}|v\d(?:\.\d)?)){1,6}$"
)
"""Ends of a model's name that leave its sizes as they are."""


def model_named(name: str, own: Mapping[str, str]) -> Model | None:
    """The preset that a name of the hub, or the last folder of a path, stands for; None where none does."""
    if (preset := own.get(name, name)) in presets():
        return load_preset(preset).model
    tail = name.strip().rstrip("/").rpartition("/")[2].lower()
    tails = {t.rpartition("/")[2].lower(): preset for preset in presets().values() for t in preset.tokenizers}
    tails |= {_KIND.sub("", tail): preset for tail, preset in tails.items() if _KIND.sub("", tail) not in tails}
    tries = (tail, tail.rpartition("--")[2], tail.partition("_")[2])  # of a cache, or behind the owner, in one folder
    found = next((tails[one] for name in tries for one in (name, _KIND.sub("", name)) if one in tails), None)
    if found is None and (called := presets().get(_KIND.sub("", tail).replace("-", "_"))):
        return called.model
    part = language_part(name)
    if found or part:
        return found.model if found else load_preset(part).model
    base = named_after(name)
    return tails[base].model if base in tails else None


_OTHER_SIZES = re.compile(
    r"\d[bml](?!it)|layer|lite|mini|small|tiny|prun|depth|width|draft|eagle|vision|vl|audio|omni|reward|(?:^|-)rm|embed|rank|distill|mtp|moe|air"
)
"""What the rest of a name has where its model has other layers than the one it begins with."""


def named_after(name: str) -> str:
    """The last part of the name of a preset's model, with its size, that a name begins with; empty where none does.

    What is trained further keeps its layers: `Qwen3-0.6B-Reverse-Text-SFT` is Qwen3-0.6B.
    """
    tail = name.strip().rstrip("/").rpartition("/")[2].lower()
    tails = {t.rpartition("/")[2].lower() for preset in presets().values() for t in preset.tokenizers}
    starts = [t for t in tails if tail.startswith(f"{t}-") and re.search(r"\d[bm]", t)]
    starts = [t for t in starts if not _OTHER_SIZES.search(tail.removeprefix(t))]
    return max(starts, key=len, default="") if _KIND.sub("", tail) not in tails else ""


def language_part(name: str) -> str:
    """The preset that the language model of a named model of several parts is; empty where it is none."""
    parts: Mapping[str, str] = key_table("language_parts")["models"]
    return parts.get(_KIND.sub("", name.strip().rstrip("/").rpartition("/")[2].lower()), "")


def preset_in(text: str) -> str:
    """The first preset that a text names as the hub does; empty where it names none."""
    tails = {t.rpartition("/")[2].lower(): name for name, preset in presets().items() for t in preset.tokenizers}
    words = (word.rpartition("/")[2].lower() for word in re.findall(r"[\w.-]{1,80}/[\w.-]{1,80}", text))
    return next((tails[word] for word in words if word in tails), "")
