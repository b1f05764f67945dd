"""Low-rank adapters in launch files: what settings of a file train, and the settings of adapters.

    tuning_in({"tuner_type": "lora", "lora_rank": 8}, keys)      # {"task": "lora", "lora": {"rank": 8, ...}}

The keys of a launcher are `lora` of its table, those of a framework `adapters` of its contract.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from primus_search.files.known_keys import key_table
from primus_search.files.plain_forms import from_plain
from primus_search.files.shell.shell_variables import UNSET
from primus_search.launch.contract import fits, holds, is_off, number_in, shortened
from primus_search.launch.write.job import Inexpressible
from primus_search.values.machine.framework import Framework, Settings
from primus_search.values.model import Model
from primus_search.values.model.adapters import EACH, FC1, HUB_NAMES, JOINT, JOINT_STYLE, QKV, modules_of
from primus_search.values.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraKeys:
    """What a launcher calls the settings of adapters; the first key that a file sets counts.

    when      keys, which may have `*`, and the values with which a file trains adapters; `unless`: with which none,
              whatever other keys say
    means     modules that a name of one stands for
    every     patterns of what a function is called that gives all linear layers
    switches  keys that put adapters on modules, beside those of `modules`
    bases     formats of frozen weights by the value of a key, which may have `*`
    defaults  rank, alpha, dropout and modules where a file sets none; no modules: all
    usual     what of these a file has otherwise whose settings are those under `when`, later ones first
    states    formats of the states beside frozen weights, by the format without adapters: those of peft are in FP32
              (`autocast_adapter_dtype`)
    """

    when: Mapping[str, str] = field(default_factory=dict)
    unless: Mapping[str, str] = field(default_factory=dict)
    means: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rank: tuple[str, ...] = ()
    alpha: tuple[str, ...] = ()
    dropout: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    every: str = ""
    switches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bases: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    defaults: Settings = field(default_factory=dict)
    usual: tuple[Settings, ...] = ()
    states: Mapping[str, str] = field(default_factory=lambda: {"bf16_all": "stack"})

    @property
    def read(self) -> frozenset[str]:
        """Every key."""
        return frozenset((*self.when, *self.unless, *self.numbers, *self.modules, *self.switches, *self.bases))

    @property
    def numbers(self) -> tuple[str, ...]:
        """The keys of rank, alpha and dropout."""
        return (*self.rank, *self.alpha, *self.dropout)

    def left_open(self, given: Settings) -> tuple[str, ...]:
        """Rank and modules, where a file sets none of their keys."""
        keys = {"rank": self.rank, "modules": (*self.modules, *self.switches)}
        return tuple(name for name, many in keys.items() if all(is_off(given.get(key)) for key in many))


SFT: Mapping[str, Any] = {"task": "sft"}
"""What a post-training job trains that has no adapters."""


def keys_of(framework: Framework) -> LoraKeys:
    """The keys of a framework's contract; of one without adapters what programs add to it (its list)."""
    own = framework.adapters
    if not own:
        return from_plain(LoraKeys, key_table(framework.keys).get("lora", {}))
    named: dict[str, Any] = {name: (own[name],) for name in ("rank", "alpha", "dropout", "modules")}
    return LoraKeys(when={own["switch"]: "true"} if "switch" in own else {own["rank"]: "[1-9]*"}, **named)


def tuning_in(given: Settings, keys: LoraKeys) -> dict[str, Any]:
    """`task` and `lora` of a workload as a file says them; empty where it trains all weights.

    Raises ValueError for a pattern of layers, or a setting that is no number.
    """
    stated = {name: value for name, value in given.items() if not is_off(value)}
    if not holds(stated, keys.when) or holds(given, keys.unless):
        return {}
    found: dict[str, Any] = dict(keys.defaults)
    for one in keys.usual:
        is_meant = all(fits(given.get(key), word) for key, word in one["when"].items())
        found |= {name: value for name, value in one.items() if name != "when"} if is_meant else {}
    for name, kind in (("rank", int), ("alpha", float), ("dropout", float)):
        number = number_in(given, keys.__getattribute__(name), kind)
        found |= {} if number is None else {name: number}
    key = next((key for key in keys.modules if not is_off(given.get(key))), "")
    switched = [one for name, many in keys.switches.items() if not is_off(given.get(name)) for one in many]
    is_every = bool(key) and UNSET.search(str(given[key])) and fits(given[key], keys.every)
    listed = ["all-linear"] if is_every else _listed(key, given[key]) if key else []
    named = [*listed, *switched] or list(found.get("modules", []))
    found["modules"] = list(dict.fromkeys(part for one in named for part in keys.means.get(one, (one,))))
    of_base = (base for key, words in keys.bases.items() for word, base in words.items() if fits(given.get(key), word))
    base = next(of_base, "")
    return {"task": "qlora" if base else "lora", "lora": found | ({"base": base} if base else {})}


_NAME = re.compile(r"[A-Za-z_][\w-]*")
_PATTERN = re.compile(r"(?:[a-z_*()|]+\.)*[a-z_*()|]+")
"""A pattern of modules that is the same in every layer."""
_LAYER = re.compile(r"\[?\\d\]?\+|\[0-9\]\+")
"""A number of a layer in a regular expression, whichever it is."""


def _listed(key: str, value: Any) -> list[str]:
    """Names of modules from a list or a text of them, those that its patterns match among them.

    Raises ValueError for a pattern that picks layers, or that no module matches.
    """
    names = value if isinstance(value, list | tuple) else re.split(r"[\s,]+", str(value).strip("[]() "))
    names = [str(one).strip("'\" ") for one in names if str(one).strip("'\" ")]
    found = list[str]()
    for one in (_LAYER.sub("*", one).replace("\\.", ".") for one in names):
        start, _, rest = one.rpartition(".")[2].partition("(")
        either, _, end = rest.partition(")")
        tails = [f"{start}{part}{end}" for part in either.split("|")]
        of_hub = [name for tail in tails for name in HUB_NAMES if fnmatchcase(name, tail)]
        matched = of_hub or [name for tail in tails for name in JOINT_STYLE if fnmatchcase(name, tail)]
        if missing := UNSET.search(one):
            raise ValueError(f"{key} depends on {missing[1]}: give the names of modules")
        if not _NAME.fullmatch(one) and not (_PATTERN.fullmatch(one) and matched):
            raise ValueError(f"{key}: {one[:80]!r} is a pattern of layers; name modules (linear_qkv, q_proj ...)")
        found += [one] if _NAME.fullmatch(one) else matched
    return list(dict.fromkeys(found))


def workload_settings(tuning: Mapping[str, Any], model: Model | None) -> dict[str, Any]:
    """The keys of a workload for what a file trains, its modules as the framework matches them in a model."""
    if "lora" not in tuning or model is None:
        return dict(tuning)
    names = tuple(tuning["lora"]["modules"])
    is_joint = EACH not in names and model.name.startswith(tuple(key_table("language_parts")["joint_experts"]))
    modules = [one for one in modules_of(model, names) if one != EACH or not is_joint]
    return {**tuning, "lora": {**tuning["lora"], "modules": modules or ["all-linear"]}}


def adapter_settings(framework: Framework, workload: Workload) -> dict[str, Any]:
    """The settings of adapters under the names of a contract; empty for a job that trains all weights.

    Raises `Inexpressible` where the framework has none, or not these.
    """
    adapters, own = workload.adapters, framework.adapters
    if adapters is None:
        return {}
    if not own:
        raise Inexpressible(f"{framework.title} has no low-rank adapters; nemo and primus start such a job")
    if adapters.base.is_packed:
        raise Inexpressible(f"{framework.title} holds frozen weights in BF16, not {adapters.base.name}; no launch file")
    if apart := sorted({*QKV, *FC1} & set(adapters.modules)):
        raise Inexpressible(
            f"{framework.title} has one adapter for a joint product, not {', '.join(apart)}; "
            "use linear_qkv and linear_fc1"
        )
    if EACH in adapters.modules:
        raise Inexpressible(f"{framework.title} has one adapter for all experts of a layer; use {JOINT}, not {EACH}")
    modules = [one for one in adapters.modules if one != JOINT]
    has_side = not {"linear_fc1", "linear_fc2"}.isdisjoint(modules)
    modules += ["linear_fc1", "linear_fc2"] if JOINT in adapters.modules and not has_side else []
    values: Sequence[tuple[str, Any]] = (
        ("switch", True),
        ("rank", adapters.rank),
        ("alpha", round(adapters.alpha)),
        ("dropout", adapters.dropout),
        ("modules", modules),
    )
    return {own[name]: value for name, value in values if name in own}


class NotModelled(ValueError):
    """What a job does that is not modelled; another job of its sizes may be priced."""


def refuse_adapters(given: Settings, own: Mapping[str, str]) -> None:
    """Raises `NotModelled` with the setting under which a part of the weights is trained that is not modelled."""
    for key, value in given.items():
        says = next((pattern for name, pattern in own.items() if fnmatchcase(key, name)), "")
        if says and not is_off(value) and fits(value, says):
            raise NotModelled(
                f"{key}: {shortened(value)} trains a part of the weights that is not modelled; "
                "low-rank adapters and fine-tuning of all weights are"
            )
