"""Candidates as settings of a framework and back, from the knobs of its contract (`framework.Spelling`).

`settings_of` writes axes that a contract maps one to one; what follows from several axes at once (sharding degrees,
layer lists) is written by the module of the format. `words_of` is the inverse and says which keys it read.
"""

from collections.abc import Mapping
from typing import Any

from primus_search.base.guards.numbers import LARGEST_WHOLE
from primus_search.space.framework_rules import recompute_parts
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


def settings_of(framework: Framework, row: Mapping[str, Any], *, has_experts: bool) -> dict[str, Any]:
    """The settings of one candidate, in the order of its axes, schedule first."""
    schedule = framework.schedules[row["schedule"]]
    said = dict(schedule.keys)
    for axis in DEFAULTS:
        knob = framework.spellings.get(axis)
        if knob is None or axis == "schedule" or axis in DERIVED or (axis in OF_EXPERTS and not has_experts):
            continue
        if knob.values:
            said |= setting(knob, spoken(row[axis]))
        elif row[axis] or KNOB[axis].least:
            said[knob.key] = row[axis]
    return said | dict(schedule.beside)


def setting(knob: Spelling, word: str) -> dict[str, Any]:
    """The settings of one word of a knob, or its list of modules, with what stands beside them."""
    if word in knob.values:
        return dict(knob.values[word]) | dict(knob.beside.get(word, {}))
    named = [knob.modules[part] for part in knob.modules if part in recompute_parts(word)]
    return {knob.key: named} | dict(knob.beside.get(MODULES, {}))


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


def _listed(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else str(value).split()


def words_of(framework: Framework, found: Settings, *, has_experts: bool) -> tuple[dict[str, Any], set[str]]:
    """Axes with their words that the settings of a file give, and the keys that were read.

    Axes whose keys depend on others are left to the module of the format. Raises ValueError where a key has a value
    that the axis cannot hold.
    """
    row: dict[str, Any] = {}
    read: set[str] = set()
    for axis, knob in framework.spellings.items():
        if axis in DERIVED:
            continue
        if axis in OF_EXPERTS and not has_experts:
            read |= knob.keys
        elif knob.modules:
            read |= knob.keys
            row[axis] = modules_of(axis, knob, found, framework.defaults)
        elif knob.values:
            word = word_of(knob, found, framework.defaults)
            if word is not None:
                read |= knob.keys
                row[axis] = _typed(axis, word)
        else:
            read.add(knob.key)
            value = found.get(knob.key, framework.defaults.get(knob.key))
            if value is not None:
                row[axis] = whole(knob.key, value, least=KNOB[axis].least)
    return row, read


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
    takes = [
        (n, s.keys) for n, s in framework.schedules.items() if vpp >= s.least and (s.most is None or vpp <= s.most)
    ]
    for name, keys in sorted(takes, key=lambda pair: -len(pair[1])):  # the most specific first
        if _has(found, framework.defaults, keys):
            return name
    return None
