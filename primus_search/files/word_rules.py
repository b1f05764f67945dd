"""Rules that say which words mean which value: of published tables, of kernel tables, of devices in logs.

Files of rules say which words of a row mean which value, rule by rule:

    - {flags: 'no tp/p2p/grad overlap', value: false}
    - {source: simumax, flags lacks: eager, set: {loss_chunks: 8}, reference: "..."}

A rule holds where all its conditions do. A condition names a fact (a column of the row, `stack.FIELD`, `device.FIELD`;
several joined by +) and what is searched in its text, case ignored:

    FACT: REGEX         found; of a list of expressions all
    FACT lacks: REGEX   not found
    FACT has: [WORDS]   one of the features is named and not switched off (`no X`, `X=false`, `X off`)

`$1` in a value stands for a group of the first expression that has groups, `$1 %` for a share as whole percent,
`stack.FIELD` for a field of the stack.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from primus_search.files.search_path import FileKind, names
from primus_search.files.source import read
from primus_search.values.machine.stack import number_of

FOLDER = Path(__file__).parent / "vocabulary"
_RESULTS = ("value", "set", "reference")
"""Keys of a rule that are no conditions: what it gives, and the reference of a number."""

Rule = Mapping[str, Any]
Facts = Mapping[str, Any]
NO_FACTS: Facts = {}


@lru_cache(maxsize=8)
def vocabulary(name: str) -> Any:
    """One vocabulary file: lists of rules, most files by name."""
    return read(FOLDER / f"{name}.yaml").data


def first(rules: Sequence[Rule], facts: Facts, default: Any = None) -> Any:
    """The value of the first rule that holds, else the default."""
    return next(every(rules, facts), default)


def every(rules: Sequence[Rule], facts: Facts) -> Iterator[Any]:
    """Values of all rules that hold, in order."""
    for rule in rules:
        groups = _groups(rule, facts)
        if groups is not None:
            yield _resolved(rule.get("value", rule.get("set")), groups, facts)


@lru_cache(maxsize=1)
def looked_for() -> tuple[re.Pattern[str], ...]:
    """Every expression and word that a rule looks for in a row's flags."""
    found: list[str] = []

    def collect(rules: Any) -> None:
        for value in rules.values() if isinstance(rules, dict) else rules if isinstance(rules, list) else ():
            collect(value)
        for condition, wanted in rules.items() if isinstance(rules, dict) else ():
            name, _, operator = condition.partition(" ")
            if "flags" in name.split("+"):
                words = wanted if isinstance(wanted, list) else [wanted]
                found.extend(map(re.escape, words) if operator == "has" else words)

    for file in sorted(FOLDER.glob("*.yaml")):
        collect(vocabulary(file.stem))
    return tuple(map(compiled, dict.fromkeys(found)))


def has(text: str, word: str) -> bool:
    """Whether a text in lower case names a feature without switching it off: `no X`, `X=false`, `X off`."""
    off = rf"(?:\b(?:no|without) {re.escape(word)}|{re.escape(word)}(?: |[=:] ?)(?:off|false|no|none|0)\b)"
    return word in text and not re.search(off, text)


def fact(name: str, facts: Facts) -> Any:
    """A fact by its name."""
    if name == "stack.name":
        return facts["stack."].name
    if name.startswith("stack."):
        return number_of(facts["stack."], name.removeprefix("stack."))
    return facts[name]


def _groups(rule: Rule, facts: Facts) -> tuple[str, ...] | None:
    """Groups of the first expression that has any; None where a condition fails."""
    groups: tuple[str, ...] = ()
    for condition, wanted in rule.items():
        if condition in _RESULTS:
            continue
        name, _, operator = condition.partition(" ")
        text = "; ".join(str(fact(part, facts)) for part in name.split("+"))
        several = wanted if isinstance(wanted, list) else [wanted]
        if operator == "has":
            if not any(has(text.lower(), word) for word in several):
                return None
            continue
        matches = [compiled(expression).search(text) for expression in several]
        if operator == "lacks":
            if any(matches):
                return None
            continue
        if not all(matches):
            return None
        groups = groups or next((match.groups() for match in matches if match and match.groups()), ())
    return groups


@lru_cache(maxsize=1024)
def compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression, re.IGNORECASE)


def _resolved(value: Any, groups: tuple[str, ...], facts: Facts) -> Any:
    if isinstance(value, list):
        return [_resolved(item, groups, facts) for item in value]
    if isinstance(value, dict):
        return {key: _resolved(item, groups, facts) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    if found := re.fullmatch(r"\$(\d)( %)?", value):
        number = typed(groups[int(found[1]) - 1])
        return round(100 * number) if found[2] else number
    return fact(value, facts) if value.startswith(("stack.", "device.")) else value


def typed(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


# --- devices ---------------------------------------------------------------------------------------------------------


def hardware_named(device: str, notes: str = "", source: str = "") -> str | None:
    """The hardware file of a device's name as logs and tables print it; None where none describes it.

    A name that no rule knows may be that of a hardware file (`my_gpu.yaml` for "My GPU"). Memory and card type may
    stand in the notes instead.
    """
    name = re.sub(r"\b(?:\d{1,5} ?x ?|dgx|hgx)(?=[a-z])", " ", plain(device))
    found = first(vocabulary("devices")["hardware"], {"name": name, "notes": plain(notes), "source": source})
    if found is None:
        words = set(name.split())
        fitting = (file for file in names(FileKind.HARDWARE) if words.issuperset(file.split("_")))
        return max(fitting, key=len, default=None)
    return None if found == "none" else str(found)


def plain(text: str) -> str:
    """Lower case, punctuation as blanks."""
    return re.sub(r"[-_/,()]+", " ", text.lower())
