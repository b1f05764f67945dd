"""Baselines: the figures of a sweep, every input they came from, and why each was accepted. One JSON file per sweep."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import write_whole
from primus_search.declare.plain_forms import Plain, digest, from_plain, to_plain
from primus_search.nightly.baseline import GROUPS, MACHINE, Inputs
from primus_search.nightly.figures import Accuracy, ClusterFigures

FORMAT = 1
_AS_WRITTEN = ("speed", "runs_sha256", "code", "data", "versions", "commit")
"""Fields of a state that a file holds as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineState:
    """What one nightly run saw: figures and inputs per entry of the sweep, and what else they depend on.

    code, data, versions   hash or version by name; see `versions`
    """

    entries: dict[str, tuple[ClusterFigures, ...]]
    inputs: dict[str, Inputs]
    accuracy: Accuracy | None
    speed: float
    runs_sha256: str
    code: dict[str, str]
    data: dict[str, str]
    versions: dict[str, str]
    commit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a baseline was accepted: when, at which commit, in whose words."""

    date: str
    commit: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """An accepted state and the reasons of all updates, newest last."""

    state: BaselineState
    reasons: tuple[Reason, ...]


def read_baseline(path: Path) -> Baseline:
    """The baseline in a file. Raises InputError when there is none, or one of another format."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        what = 'no such baseline; accept today\'s figures with --update-baseline --reason "first baseline"'
        raise InputError([Problem(str(path), what)]) from None
    except (OSError, ValueError) as error:
        raise InputError([Problem(str(path), f"cannot be read: {error}")]) from error
    try:
        if plain["format"] != FORMAT:
            raise KeyError("format")
        return Baseline(state=_state(plain), reasons=tuple(Reason(**one) for one in plain["reasons"]))
    except (KeyError, TypeError, ValueError) as error:
        what = f"is no baseline of this version ({error}); write a new one with --update-baseline --reason TEXT"
        raise InputError([Problem(str(path), what)]) from error


def known_reasons(path: Path) -> tuple[Reason, ...]:
    """The reasons of a baseline file that is about to be replaced; none where it cannot be read."""
    try:
        return read_baseline(path).reasons
    except InputError:
        return ()


def write_baseline(path: Path, baseline: Baseline) -> None:
    """The file, whole or not at all; the same state and reasons give the same bytes."""
    write_whole(path, json.dumps(_plain(baseline), indent=1, sort_keys=True) + "\n")


def _plain(baseline: Baseline) -> dict[str, Any]:
    """Equal inputs of several entries are kept once, under their hash."""
    state = baseline.state
    values: dict[str, Plain] = {}
    entries = {}
    for name, figures in state.entries.items():
        inputs = {group: _kept(group, state.inputs[name][group], values) for group in GROUPS}
        entries[name] = {"inputs": inputs, "clusters": [to_plain(one) for one in figures]}
    return {
        "format": FORMAT,
        "reasons": [to_plain(reason) for reason in baseline.reasons],
        "entries": entries,
        "values": values,
        "accuracy": to_plain(state.accuracy) if state.accuracy else None,
    } | {name: state.__getattribute__(name) for name in _AS_WRITTEN}


def _kept(group: str, value: Plain, values: dict[str, Plain]) -> Plain:
    if group in MACHINE:
        return [_key(one, values) for one in value]
    return _key(value, values)


def _key(value: Plain, values: dict[str, Plain]) -> str:
    key = digest(value)
    values[key] = value
    return key


def _state(plain: dict[str, Any]) -> BaselineState:
    values, entries = plain["values"], plain["entries"]
    inputs = {
        name: {
            group: [values[key] for key in kept] if group in MACHINE else values[kept]
            for group, kept in entry["inputs"].items()
        }
        for name, entry in entries.items()
    }
    return BaselineState(
        entries={
            name: tuple(from_plain(ClusterFigures, one) for one in entry["clusters"]) for name, entry in entries.items()
        },
        inputs=inputs,
        accuracy=from_plain(Accuracy, plain["accuracy"]) if plain["accuracy"] else None,
        **{name: plain[name] for name in _AS_WRITTEN},
    )
