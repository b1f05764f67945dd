"""Settings that other keys of a launcher's file give: sums of products, defaults of the launcher; the job of axes."""

import re
from collections.abc import Mapping
from functools import lru_cache
from math import nan, prod
from pathlib import Path
from typing import Any

from primus_search.files.expressions import parsed, value_of
from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import known_keys
from primus_search.launch.contract import fits, is_off, whole
from primus_search.launch.experiment import Experiment, settled
from primus_search.launch.read.launcher_table import Launcher
from primus_search.launch.read.megatron import model_keys, sharded
from primus_search.launch.world import World
from primus_search.values.candidates import DEFAULTS
from primus_search.values.knobs import WORDED
from primus_search.values.machine.framework import ANY, Framework, Settings
from primus_search.values.model import Model

NAME = re.compile(r"[A-Za-z_][\w.]*")


def sized(launcher: Launcher, given: Settings, found: Settings, gpus: int, model: Model | None) -> dict[str, Any]:
    """What defaults and formulas give, where the file does not say it under the contract's own name; of micro-batches
    what is so `where` a key says it (dynamic ones) counts before a size."""
    known = {**launcher.defaults, **given, **found}
    axes = load_framework(launcher.contract).spellings
    ranks = prod(int(str(known.get(axes[one].key if one in axes else one) or 1)) for one in ("tp", "pp", "cp"))
    if gpus:
        known |= {"gpus": gpus, "replicas": gpus // ranks}
    known |= {"layers": model.num_layers} if model else {}
    names = settings_read(launcher.contract) | (launcher.defaults.keys() - names_in(launcher) - given.keys())
    own = {key: value for key, value in launcher.defaults.items() if key in names and key not in found}
    for name, ways in launcher.formulas.items():
        ways = ways if found.get(name) is None else tuple(w for w in ways if " where " in w and name == MICRO_BATCH)
        if (value := first_known(ways, known)) is not None:
            own[name] = known[name] = value
    if MICRO_BATCH in own and gpus >= ranks and known.get(BATCH):
        own[MICRO_BATCH] = _dividing(int(str(own[MICRO_BATCH])), int(str(known[BATCH])) // (gpus // ranks))
    return {key: one for key, one in own.items() if key != "gpus" and (found.get(key) is None or key == MICRO_BATCH)}


BATCH, MICRO_BATCH = "global_batch_size", "micro_batch_size"


def _dividing(most: int, samples: int) -> int:
    """The largest micro-batch of at most `most` samples that a replica's share of the batch is whole in."""
    return next((count for count in range(most, 1, -1) if samples % count == 0), 1)


def names_in(launcher: Launcher, *settings: str) -> set[str]:
    """Every name that a formula of a launcher has; those of some settings, where any are named."""
    ways = [many for key, many in launcher.formulas.items() if not settings or key in settings]
    return {word for many in ways for one in many for word in NAME.findall(one)}


@lru_cache
def settings_read(contract: str) -> frozenset[str]:
    """Names of a contract that make the candidate, the model or the workload."""
    if contract == ANY:
        return frozenset((*DEFAULTS, "seq_length", BATCH, "copies"))
    framework = load_framework(contract)
    return framework.spelled | known_keys(framework.keys).read_beside | model_keys()


def first_known(ways: tuple[str, ...], known: Settings) -> int | None:
    """The number of the first formula whose names are all known."""
    return next((number for way in ways if (number := _number(way, known)) is not None), None)


def _number(formula: str, known: Settings) -> int | None:
    """The whole number of a sum of products, `a * b / c + d up to multiple where key = value`.

    None where a name is not known, or is no positive number.
    """
    text, _, condition = formula.partition(" where ")
    text, _, multiple = text.partition(" up to ")
    if not is_met(condition, known):
        return None
    step = int(str(known.get(multiple) or 1))
    try:
        total = value_of(parsed(text), lambda name: one if (one := float(str(known[name]))) > 0 else nan)
        return max(-(-int(total) // step) * step, 1)
    except (KeyError, ValueError, OverflowError):
        return None


def is_met(condition: str, known: Settings) -> bool:
    """Whether a condition holds, `key = values`; none always does."""
    key, _, values = (part.strip() for part in condition.partition("="))
    return not condition or (key in known and fits(known[key], values))


def acting(effects: Mapping[str, str], given: Settings) -> dict[str, str]:
    """Effects of keys, `key` or `key where other = values`, of which only those whose condition holds."""
    split = ((*key.partition(" where ")[::2], effect) for key, effect in effects.items())
    return {key: effect for key, condition, effect in split if is_met(condition, given)}


def of_axes(
    path: Path, framework: Framework, found: Settings, gpus: int, model: Model | None, started: World
) -> Experiment:
    """The job of axes by our own names; `copies`: of sharded weights; `stack.NAME`: a number of the stack."""
    row = {axis: _word(axis, value) for axis, value in found.items() if axis in DEFAULTS and value is not None}
    row |= {"pp": row.get("pp", 1), "vpp": row.get("vpp", 1)}
    if row["pp"] == 1 or row["vpp"] == 1:
        row |= {"vpp": 1, "schedule": row["schedule"] if row["pp"] > 1 and row.get("schedule") == "gpipe" else "1f1b"}
    copies = whole("copies", found.get("copies") or 1, least=1)
    ranks = gpus // (row.get("tp", 1) * row["pp"])
    if row.get("sharding") == "fsdp2":
        row |= sharded(copies, ranks // copies) if ranks > copies else {"sharding": "none"}
    row |= {"deepep": False} if row.get("ep", 1) == 1 else {}
    row |= {"pipeline_layout": "balanced"} if model and model.num_layers % (row["pp"] * row["vpp"]) else {}
    length, batch = found.get("seq_length"), found.get("global_batch_size")
    return Experiment(
        path=path,
        framework=framework,
        row=settled(framework, row, model),
        seq_length=None if length is None else whole("seq_length", length, least=1),
        global_batch_size=None if batch is None else whole("global_batch_size", batch, least=1),
        model=model,
        world=started,
        numbers={key.removeprefix(NUMBER): value for key, value in found.items() if key.startswith(NUMBER)},
    )


NUMBER = "stack."
"""What begins the name of a number of the stack in a table."""


def _word(axis: str, value: Any) -> Any:
    """A value of an axis as a row has it."""
    if isinstance(DEFAULTS[axis], bool):
        return not is_off(value)
    return str(value) if axis in WORDED else whole(axis, value)
