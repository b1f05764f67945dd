"""Settings of a launch file that no axis covers: every key has a verdict, and what is not priced is said by its name.

A key is read (an axis, or a number of the workload), or listed as one that moves time or memory and is not priced, or
listed as one that can matter for neither (`spaces/keys/*.yaml`); what is none of these is said as unknown.
"""

import fnmatch
from collections.abc import Mapping
from typing import Any

from primus_search.declare.known_keys import KnownKeys, known_keys
from primus_search.declare.launch.contract import DERIVED, is_off, same, settings_of
from primus_search.declare.megatron_yaml import readable_keys
from primus_search.values.machine.framework import Framework, Settings

VALUE = "$value"
"""What stands for the value of a translated key."""
NEGATION = "no_"
"""`no_X: true` means `X: false` in Megatron's family."""


def translated(framework: Framework, given: Settings) -> tuple[dict[str, Any], dict[str, str]]:
    """Settings under the names of the contract, and the key of the file that each of the others came from.

    What a file sets under its own name wins over what another key means.
    """
    table = known_keys(framework.keys) if framework.keys else KnownKeys()
    meanings = {key: _meaning(framework, table, key, value) for key, value in given.items()}
    found = {key: meant[key] for key, meant in meanings.items() if key in meant}
    origin: dict[str, str] = {}
    for key, meant in meanings.items():
        for name, value in meant.items():
            if name != key and is_off(found.get(name)):
                found[name] = value
                origin[name] = key
    return found, origin


def _meaning(framework: Framework, table: KnownKeys, key: str, value: Any) -> Settings:
    """The settings of the contract that one key of a file means."""
    if key in framework.spelled:
        return {key: value}
    if key in table.renamed:
        return {table.renamed[key]: value}
    if key in table.translated:
        words = table.translated[key].items()
        found = next((s for word, s in words if fnmatch.fnmatch(str(value).lower(), word)), {})
        return {name: value if meant == VALUE else meant for name, meant in found.items()} if value is not None else {}
    positive = key.removeprefix(NEGATION)
    if positive != key and (positive in table.effects or positive in framework.spelled):
        return {positive: False} if not is_off(value) else {}
    return {key: value}


def notes_of(
    framework: Framework,
    row: Mapping[str, Any],
    given: Settings,
    read_keys: set[str],
    *,
    has_experts: bool,
    is_whole: bool,
) -> list[str]:
    """`key: value (what it means)` of every setting that is not priced as it stands, in the order of the file.

    given: what the file sets itself, under the names of the contract; read_keys: keys that made the candidate.
    is_whole: what the file leaves out is at the default of the framework.
    """
    table = known_keys(framework.keys) if framework.keys else KnownKeys()
    ours = _written(framework, row, given, has_experts=has_experts)
    notes = []
    for key, value in given.items():
        if _is_idle(table, key, given):
            continue
        text = _verdict(framework, table, key, value, ours, row, read_keys)
        if text is not None:
            notes.append(f"{key}: {shortened(value)}{text}")
    if is_whole:
        notes += _by_default(framework, table, given, ours, has_experts=has_experts)
    return notes


def _by_default(
    framework: Framework, table: KnownKeys, given: Settings, ours: Settings, *, has_experts: bool
) -> list[str]:
    """Notes of settings that a file leaves out and that the framework then takes otherwise than they are priced."""
    left_out = [key for key in framework.effects if key in framework.defaults and key not in given and key not in ours]
    return [
        f"{key}: {shortened(framework.defaults[key])} by default (not priced: {framework.effects[key]})"
        for key in left_out
        if not _is_priced(framework, key, framework.defaults[key])
        and not _is_idle(table, key, given)
        and (has_experts or not key.startswith("moe_"))
    ]


def _written(framework: Framework, row: Mapping[str, Any], given: Settings, *, has_experts: bool) -> dict[str, Any]:
    """What a launch file of the candidate sets, as far as each axis decides it alone."""
    ours = settings_of(framework, row, has_experts=has_experts)
    if row["pp"] == 1:
        ours = {key: value for key, value in ours.items() if key not in framework.schedules[row["schedule"]].keys}
    if "overlap_param_gather" in given:
        hides = row["overlap_grad_reduce"] and row["sharding"] == "distributed_optimizer"
        ours.setdefault("overlap_param_gather", hides)
    return ours


def _verdict(
    framework: Framework, table: KnownKeys, key: str, value: Any, ours: Settings, row: Mapping[str, Any], read: set[str]
) -> str | None:
    """What is said of one setting; None where it is priced as it stands, or can matter for neither time nor memory."""
    if key in ours:
        return None if same(value, ours[key]) else f" (projected as {shortened(ours[key])})"
    if key in framework.effects:
        return None if _is_priced(framework, key, value) else f" (not priced: {framework.effects[key]})"
    if key in framework.spelled:
        axes = [a for a, spelling in framework.spellings.items() if key in spelling.keys and a not in DERIVED]
        if not axes or is_off(value) or same(value, framework.defaults.get(key)) or key in framework.ignored:
            return None
        numbers = [axis for axis in axes if framework.spellings[axis].key == key]
        if any(not framework.spellings[axis].modules for axis in numbers):  # read as it stands
            return None
        positive = framework.effects.get(key.removeprefix(NEGATION))
        if positive and key.startswith(NEGATION):
            return f" (not priced: {positive})"
        return f" (projected as {', '.join(f'{axis}={row[axis]}' for axis in axes)})"
    if key in read or key in readable_keys() or key in table.switches or is_ignored(framework, table, key):
        return None
    return ""  # unknown: its name and value alone


def is_ignored(framework: Framework, table: KnownKeys, key: str) -> bool:
    """Whether a key is listed as one that can matter for neither time nor memory, by its name or a pattern."""
    patterns = (*framework.ignored, *(name for name in table.irrelevant if "*" in name))
    return key in table.irrelevant or key in table.companions or any(fnmatch.fnmatch(key, one) for one in patterns)


def _is_priced(framework: Framework, key: str, value: Any) -> bool:
    priced = framework.priced.get(key)
    return any(same(value, one) for one in (priced if isinstance(priced, list) else [priced]))


def _is_idle(table: KnownKeys, key: str, given: Settings) -> bool:
    """Whether another setting leaves a key without effect."""
    where = table.idle_where.get(key, {})
    return any(name in given and same(given[name], value) for name, value in where.items())


def shortened(value: Any) -> str:
    """A value as a note has it: off for what is left out."""
    return "off" if value in (None, False, "", []) else str(value)[:60]
