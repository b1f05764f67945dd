"""Candidates as settings of a framework and back, from the knobs of its contract (`framework.Spelling`).

`settings_of` writes axes that a contract maps one to one; what follows from several axes at once (sharding degrees,
layer lists) is written by the module of the format. `words_of` is the inverse and says which keys it read.

What no axis covers:
A key is read (an axis, or a number of the workload), or listed as one that moves time or memory and is not priced, or
listed as one that can matter for neither (`spaces/keys/*.yaml`); what is none of these is said as unknown.
"""

import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from primus_search.base.guards.values import LARGEST_WHOLE
from primus_search.files.expressions import parsed, value_of
from primus_search.files.known_keys import KnownKeys, known_keys
from primus_search.models.megatron_yaml import readable_keys
from primus_search.space.rules import recompute_parts
from primus_search.values.candidates import DEFAULTS, spoken
from primus_search.values.knobs import KNOB, WORDED, Kind, Scope
from primus_search.values.machine.framework import Framework, Settings, Spelling

OF_EXPERTS = tuple(name for name, knob in KNOB.items() if knob.scope == Scope.EXPERTS)
"""Axes that a dense model's file does not set."""
DERIVED = frozenset(
    name for name, knob in KNOB.items() if knob.detail_of or knob.kind is Kind.LAYOUT or name in ("vpp", "recompute")
)
"""Axes whose keys depend on others; the module of the format writes them."""


OFF = (None, False, "", 0, "0", "0.0", "false", "null", "none")
"""Values of a setting that mean the same as leaving it out."""


def settings_of(framework: Framework, row: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one candidate, in the order of its axes, schedule first."""
    schedule = framework.schedules[row["schedule"]]
    said = dict(schedule.keys)
    for axis in DEFAULTS:
        knob = framework.spellings.get(axis)
        if knob is None or axis == "schedule" or axis in DERIVED or (axis in OF_EXPERTS and not framework.has_experts):
            continue
        if knob.values:
            said |= setting(knob, spoken(row[axis]))
        elif row[axis] or KNOB[axis].least:
            said |= {**knob.switch, knob.key: row[axis] / knob.scale if knob.scale != 1.0 else row[axis]}
            said |= knob.beside.get(SWITCHED, {})
    return said | dict(schedule.beside)


def setting(knob: Spelling, word: str) -> dict[str, Any]:
    """The settings of one word of a knob, or its list of modules, with what stands beside them."""
    if word in knob.values:
        return dict(knob.values[word]) | dict(knob.beside.get(word, {}))
    named = [knob.modules[part] for part in knob.modules if part in recompute_parts(word)]
    return {knob.key: named} | dict(knob.beside.get(MODULES, {}))


SWITCHED = "switched"
"""The word of a contract for what stands beside every number with a switch."""
MODULES = "modules"
"""The word of a contract for what stands beside every list of modules."""


def word_of(knob: Spelling, found: Settings, defaults: Settings) -> str | None:
    """The word whose settings a file has: the most specific one; None where no word fits.

    Of two with as many settings, the one that the defaults do not have wins.
    """
    ways = [(word, one) for word, one in knob.values.items()]
    ways += [(word, one) for word, many in knob.reads.items() for one in many]
    ways.sort(
        key=lambda way: (
            -sum(value not in OFF for value in way[1].values()),
            -sum(not same(defaults.get(key), value) for key, value in way[1].items()),
            -len(way[1]),
        )
    )
    return next((word for word, settings in ways if _has(found, defaults, settings)), None)


def _has(found: Settings, defaults: Settings, settings: Settings) -> bool:
    """Whether a file has these settings, by itself or by default."""
    return all(same(found.get(key, defaults.get(key)), value) for key, value in settings.items())


def same(given: Any, value: Any) -> bool:
    """Whether two settings mean the same: absent, null and off are one."""
    if is_off(given) or is_off(value):
        return is_off(given) and is_off(value)
    if isinstance(given, list) or isinstance(value, list):
        return _listed(given) == _listed(value)
    return str(given).lower() == str(value).lower()


def is_off(value: Any) -> bool:
    """Whether a setting means the same as leaving it out."""
    return value in ([], ()) if isinstance(value, list | tuple) else value in OFF or str(value).lower() in OFF[5:]


SWITCHES = {"true": ("1", "yes", "y", "on"), "false": ("0", "no", "n", "off")}
"""Words that launchers take for a switch, too."""


def fits(value: Any, patterns: str) -> bool:
    """Whether a value, whatever its case, fits one of the patterns between bars; `1` and `yes` are true."""
    text = str(value).lower()
    return any(fnmatch.fnmatchcase(text, one) or text in SWITCHES.get(one, ()) for one in patterns.split("|"))


def holds(given: Settings, where: Mapping[str, str]) -> bool:
    """Whether a file has one of these settings: patterns of keys and of values, each between bars."""
    return any(
        any(fnmatch.fnmatchcase(name, one) for one in keys.split("|")) and fits(value, words)
        for name, value in given.items()
        for keys, words in where.items()
    )


def number_in(given: Settings, keys: Iterable[str], kind: type[int] | type[float]) -> int | float | None:
    """The number under the first of some keys that a file sets. Raises ValueError for what is none."""
    key = next((key for key in keys if not is_off(given.get(key))), "")
    try:
        return kind(str(given[key])) if key else None
    except ValueError:
        raise ValueError(f"{key}: {str(given[key])[:80]!r} is not a number") from None


def _listed(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else str(value).split()


def words_of(framework: Framework, found: Settings) -> tuple[dict[str, Any], set[str]]:
    """Axes with their words that the settings of a file give, and the keys that were read.

    Axes whose keys depend on others are left to the module of the format. Raises ValueError where a key has a value
    that the axis cannot hold.
    """
    row: dict[str, Any] = {}
    read: set[str] = set()
    for axis, knob in framework.spellings.items():
        if axis in DERIVED:
            continue
        if axis in OF_EXPERTS and not framework.has_experts:
            read |= knob.keys
        elif knob.modules:
            read |= knob.keys
            row[axis] = modules_of(axis, knob, found, framework.defaults)
        elif knob.values:
            word = word_of(knob, found, framework.defaults)
            if word is not None:
                read |= knob.keys
                row[axis] = _typed(axis, word)
        elif knob.switch and not _has(found, framework.defaults, knob.switch):
            read |= knob.keys
            row[axis] = 0
        elif knob.scale != 1.0:
            read |= knob.keys
            row[axis] = _scaled(knob, found.get(knob.key, framework.defaults.get(knob.key)))
        else:
            read.add(knob.key)
            value = found.get(knob.key, framework.defaults.get(knob.key))
            if value is not None:
                row[axis] = whole(knob.key, value, least=KNOB[axis].least)
    return row, read


def _scaled(knob: Spelling, value: Any) -> int:
    """The value of an axis from a setting that is a fraction of it. Raises ValueError that names the key."""
    try:
        return round(float(value) * knob.scale)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{knob.key}: {str(value)[:80]!r} is not a number") from None


def _typed(axis: str, word: str) -> Any:
    """A word of a contract as `Candidates.row` has it."""
    if isinstance(DEFAULTS[axis], bool):
        return word == "true"
    return word if axis in WORDED else int(word)


def whole(key: str, value: Any, *, least: int | None = None) -> int:
    """A setting as a whole number of at least `least`. Raises ValueError that names the key."""
    try:
        if isinstance(value, bool):
            raise ValueError
        number = int(str(value))
    except ValueError:
        raise ValueError(f"{key}: {str(value)[:80]!r} is not a whole number") from None
    if abs(number) > LARGEST_WHOLE or (least is not None and number < least):
        raise ValueError(f"{key}: {str(value)[:80]} is out of range")
    return number


def modules_of(axis: str, knob: Spelling, found: Settings, defaults: Settings) -> str:
    """The word of the modules that a file lists; none where what stands beside a list is not there.

    Raises ValueError for a module that is not modelled.
    """
    if not all(same(found.get(key), value) for key, value in knob.beside[MODULES].items()):
        return "none"
    named = found.get(knob.key, defaults.get(knob.key)) or []
    ours = {theirs: word for word, theirs in knob.modules.items()}
    unknown = [module for module in _listed(named) if module not in ours]
    if unknown:
        raise ValueError(f"{knob.key}: {', '.join(unknown)} is not modelled; known: {', '.join(ours)}")
    flags = 0
    for module in _listed(named):
        flags |= KNOB[axis].code(ours[module])
    return str(KNOB[axis].word(flags))


def schedule_of(framework: Framework, found: Settings, vpp: int) -> str | None:
    """The schedule whose settings a file has and that takes so many virtual stages; None where none does."""
    fitting = [(n, s) for n, s in framework.schedules.items() if vpp >= s.least and (s.most is None or vpp <= s.most)]
    takes = [(name, keys) for name, schedule in fitting for keys in (schedule.keys, *schedule.reads)]
    for name, keys in sorted(takes, key=lambda pair: -len(pair[1])):  # the most specific first
        if _has(found, framework.defaults, keys):
            return name
    return None


VALUE = "$value"
"""What stands for the value of a translated key."""
_NEGATION = re.compile(r"^(?:no|disable)_")


def positive_of(key: str) -> str:
    """The setting that a key of Megatron's family switches off, `X` of `no_X` and `disable_X`; else the key itself."""
    return _NEGATION.sub("", key)


def translated(framework: Framework, given: Settings) -> tuple[dict[str, Any], dict[str, str]]:
    """Settings under the names of the contract, and the key of the file that each of the others came from.

    What a file sets under its own name wins over what another key means, unless that key is listed as overruling.
    """
    table = known_keys(framework.keys) if framework.keys else KnownKeys()
    meanings = {key: _meaning(framework, table, key, value) for key, value in given.items()}
    found = {key: meant[key] for key, meant in meanings.items() if key in meant}
    origin: dict[str, str] = {}
    for key, meant in meanings.items():
        for name, value in meant.items():
            if name != key and (is_off(found.get(name)) or key in table.overruling):
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
    positive = positive_of(key)
    if positive != key and (positive in table.effects or positive in framework.spelled):
        return {positive: False} if not is_off(value) else {}
    return {key: value}


def notes_of(
    framework: Framework,
    row: Mapping[str, Any],
    given: Settings,
    read_keys: set[str],
    *,
    job: Settings,
    is_whole: bool,
    decided: Collection[str] = (),
) -> list[str]:
    """`key: value (what it means)` of every setting that is not priced as it stands, in the order of the file.

    given: what the file sets itself, under the names of the contract; read_keys: keys that made the candidate.
    job: all settings that are known of it, those of its model among them.
    is_whole: what the file leaves out is at the default of the framework.
    decided: keys whose values decide numbers of the stack that the candidate is priced with.
    """
    table = known_keys(framework.keys) if framework.keys else KnownKeys()
    ours = _written(framework, row)
    notes = []
    for key, value in given.items():
        if key in decided or not acts(framework, row, job, key):
            continue
        text = _verdict(framework, table, key, value, ours, row, read_keys)
        if text is not None:
            notes.append(f"{key}: {shortened(value)}{text}")
    if is_whole:
        notes += _by_default(framework, row, given, job, ours, decided)
    return notes


def _by_default(
    framework: Framework,
    row: Mapping[str, Any],
    given: Settings,
    job: Settings,
    ours: Settings,
    decided: Collection[str],
) -> list[str]:
    """Notes of settings that a file leaves out and that the framework then takes otherwise than they are priced."""
    left_out = [
        key
        for key, usual in framework.defaults.items()
        if key not in given and same(job.get(key, usual), usual) and acts(framework, row, job, key)
    ]
    assumed = [
        f"{key}: {shortened(framework.defaults[key]) if framework.defaults[key] else 'off'} by default "
        f"(projected as {shortened(ours[key])})"
        for key in ours
        if key in left_out and not same(framework.defaults[key], ours[key])
    ]
    return assumed + [
        f"{key}: {shortened(framework.defaults[key])} by default (not priced: {effect})"
        for key, effect in framework.effects.items()
        if key in left_out
        and key not in ours
        and not _is_priced(framework, key, framework.defaults[key])
        and key not in decided
    ]


def _written(framework: Framework, row: Mapping[str, Any]) -> dict[str, Any]:
    """What a launch file of the candidate sets, as far as each axis decides it alone."""
    ours = settings_of(framework, row)
    if row["pp"] == 1:
        ours = {key: value for key, value in ours.items() if key not in framework.schedules[row["schedule"]].keys}
    return ours


def _verdict(
    framework: Framework, table: KnownKeys, key: str, value: Any, ours: Settings, row: Mapping[str, Any], read: set[str]
) -> str | None:
    """The note on one setting; None where it is priced as it stands, or can matter for neither time nor memory."""
    if key in ours:
        return None if same(value, ours[key]) else f" (projected as {shortened(ours[key])})"
    makes_axis = any(one.key == key and row[axis] != DEFAULTS[axis] for axis, one in framework.spellings.items())
    if key in framework.effects and not makes_axis:
        return None if _is_priced(framework, key, value) else f" (not priced: {framework.effects[key]})"
    if key in framework.spelled:
        axes = [a for a, spelling in framework.spellings.items() if key in spelling.keys and a not in DERIVED]
        if not axes or is_off(value) or same(value, framework.defaults.get(key)) or key in framework.ignored:
            return None
        numbers = [axis for axis in axes if framework.spellings[axis].key == key]
        if any(not framework.spellings[axis].modules for axis in numbers):  # read as it stands
            return None
        if positive_of(key) != key and positive_of(key) in framework.effects:
            return f" (not priced: {framework.effects[positive_of(key)]})"
        return f" (projected as {', '.join(f'{axis}={row[axis]}' for axis in axes)})"
    if key in read or key in readable_keys() or key in table.switches or is_ignored(framework, table, key):
        return None
    return ""  # unknown: its name and value alone


def is_ignored(framework: Framework, table: KnownKeys, key: str) -> bool:
    """Whether a key is listed as one that can matter for neither time nor memory, by its name or a pattern."""
    patterns = (*framework.ignored, *(name for name in table.irrelevant if "*" in name))
    listed = (key, positive_of(key))
    return any(
        one in table.irrelevant or one in table.companions or any(fnmatch.fnmatch(one, pattern) for pattern in patterns)
        for one in listed
    )


def _is_priced(framework: Framework, key: str, value: Any) -> bool:
    priced = framework.priced.get(key)
    return any(same(value, one) for one in (priced if isinstance(priced, list) else [priced]))


def acts(framework: Framework, row: Mapping[str, Any], given: Settings, key: str) -> bool:
    """Whether a setting can act beside the others of a job; also where that is not known."""
    table = known_keys(framework.keys) if framework.keys else KnownKeys()
    if key in table.companions and all(is_off(given.get(one)) for one in table.switches):
        return False
    text = table.acts_where.get(key, "has_experts" if key.startswith("moe_") else "True")
    facts = {**row, "has_experts": framework.has_experts, "framework": framework.name}

    def named(name: str) -> Any:
        value = given.get(name, framework.defaults.get(name))
        return facts[name] if name in facts else False if is_off(value) and value is not None else value

    try:
        return bool(value_of(parsed(text), named))
    except TypeError:
        return True


def shortened(value: Any) -> str:
    """A value as a note has it: off for what is left out."""
    return "off" if value in (None, False, "", []) else str(value)[:60]
