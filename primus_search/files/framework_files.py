"""Framework contracts from `hardware/frameworks/*.yaml`: every entry checked, every problem of a file at once.

load_framework("primus").spellings["tp"].key          # tensor_model_parallel_size
load_framework("nemo@26.04")                      # NeMo as that release was
default_framework("nvidia")                       # Megatron-LM
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from primus_search.base.errors import InputError, Problem, did_you_mean
from primus_search.base.field_paths import value_at
from primus_search.base.guards.files import is_recording
from primus_search.files.known_keys import KnownKeys, key_table, known_keys
from primus_search.files.plain_forms import from_plain
from primus_search.files.search_path import FileKind, find, name_and_version, names
from primus_search.files.source import Document, Keys, read
from primus_search.schedule.registry import names as schedule_names
from primus_search.space import ConstraintError, parse
from primus_search.space.rules import RULES
from primus_search.values.candidates import DEFAULTS
from primus_search.values.machine.framework import (
    ANY,
    ANY_FRAMEWORK,
    Decision,
    Framework,
    Idle,
    Requirement,
    Schedule,
    Spelling,
    WorkloadSetting,
)
from primus_search.values.machine.stack import GROUP_OF
from primus_search.values.tasks import Task

Part = TypeVar("Part", Schedule, Spelling, Requirement, Idle, Decision, WorkloadSetting)

_JOINED = (
    "stacks", "stack_notes", "variants", "models", "flavors", "launchers", "options", "defaults", "adapters", "packing",
    "fixes", "checkout",
)  # fmt: skip
"""Sections whose entries are laid over those of the base as they stand."""
_UNKNOWN = {
    "schedules": "no schedule has that name", "knobs": "no axis has that name", "until": "is none of the releases",
    "number": "no number of a stack has that name", "before": "is none of the releases",
    "overrules": "is no rule of every job",
}  # fmt: skip
DEFAULT_BY_VENDOR = {"amd": "primus", "nvidia": "megatron"}
"""What starts a job unless a space or a flag says otherwise; on other devices no framework is assumed."""
BY_TASK: Mapping[str, Mapping[str, str]] = {"lora": {"amd": "primus", "nvidia": "nemo"}, "qlora": {}}
"""What starts one that trains low-rank adapters; beside packed weights none of the contracts."""

_OWN = ("name", "spellings", "lifted", "has_experts")
"""Fields of a contract that its file has under another key, or not at all."""
_KEYS = ("base", "knobs", "lifts", *(one.name for one in fields(Framework) if one.name not in _OWN))


def framework_names() -> tuple[str, ...]:
    """Every framework that has a file, and `any`."""
    return tuple(names(FileKind.FRAMEWORK))


def default_framework(vendor: str, task: Task = "pretrain") -> Framework:
    """The framework that is assumed on the devices of a vendor for a task."""
    return load_framework(BY_TASK.get(task, DEFAULT_BY_VENDOR).get(vendor.lower(), ANY))


def load_framework(text: str, *, beside: Path | None = None, where: str = "framework") -> Framework:
    """The contract a name or path stands for, `NAME@RELEASE` for an earlier release of it.

    Raises `InputError` with every problem of the file.
    """
    if text == ANY:
        return ANY_FRAMEWORK
    name, release = name_and_version(text)
    path = find(FileKind.FRAMEWORK, name, beside=beside)
    if isinstance(path, str):
        raise InputError([Problem(where, path)])
    path = path.resolve()
    found = _read(path) if is_recording() else _loaded(path, path.stat().st_mtime_ns)
    if release and release not in found.releases:
        known = f"releases: {', '.join(found.releases)}" if found.releases else "its contract names no releases"
        raise InputError([Problem(where, f"{found.title} has no release {release!r} - {known}")])
    return found.at(release) if release else found


@lru_cache(maxsize=32)
def _loaded(path: Path, changed: int) -> Framework:
    return _read(path)


def _read(path: Path) -> Framework:
    return framework_of(read(path), path.stem, path.parent)


def framework_of(document: Document, name: str, beside: Path | None, newer: Framework | None = None) -> Framework:
    """The contract a document describes; `base` names one it extends, `lifts` rules of it that do not bind.

    newer: the contract that it changes into that of earlier releases.
    """
    data, problems = document.data, list[Problem]()
    if not isinstance(data, dict):
        raise InputError([document.problem((), f"expected the keys {', '.join(_KEYS)}")])
    if "software" in data:  # as contracts of 0.1.0 call it
        rows = [{"number": one["habit"], **{k: v for k, v in one.items() if k != "habit"}} for one in data["software"]]
        data = {key: value for key, value in data.items() if key != "software"} | {"decides": rows}
    for key in [key for key in data if key not in _KEYS]:
        problems.append(document.problem((key,), f"unknown key{did_you_mean(key, _KEYS, problems)}"))
    base = newer or (load_framework(str(data["base"]), beside=beside) if "base" in data else Framework())
    releases = tuple(map(str, data.get("releases", base.releases)))
    table = known_keys(str(data["keys"])) if "keys" in data else KnownKeys()
    shared = key_table(str(data["keys"])) if "keys" in data else {}
    of_both = {name: [*shared.get(name, ()), *data.get(name, ())] for name in ("decides", "workload")}
    known = {"schedules": schedule_names(), "knobs": DEFAULTS, "number": GROUP_OF, "until": ("", *releases),
             "before": releases, "overrules": [one.name for one in RULES]}  # fmt: skip
    reader = _Reader(document, problems, known)
    for rule in data.get("overrules", ()):
        reader.check(("overrules",), str(rule), "overrules")
    for number in data.get("fixes", ()):
        reader.check(("fixes", number), str(number), "number")
    requires = reader.listed(Requirement, "requires", data.get("requires", []))
    joined: Any = {section: {**value_at(base, (section,)), **data.get(section, {})} for section in _JOINED}
    joined["fixes"] = {number: value for number, value in joined["fixes"].items() if value is not None}
    joined |= {word: str(data.get(word, value_at(base, (word,)))) for word in ("release", "keys")}
    found = Framework(
        name=name,
        title=str(data.get("title", newer.title if newer else name)),
        releases=releases,
        vendors=tuple(data.get("vendors", base.vendors)),
        schedules={**base.schedules, **reader.named(Schedule, "schedules", data.get("schedules", {}))},
        spellings={**base.spellings, **reader.named(Spelling, "knobs", data.get("knobs", {}))},
        requires=(*reader.kept(base.requires, data.get("lifts", [])), *(one for one in requires if not one.until)),
        lifted=(*(newer.lifted if newer else ()), *(one for one in requires if one.until)),
        cautions=(*base.cautions, *reader.listed(Requirement, "cautions", data.get("cautions", []))),
        overrules=tuple(map(str, data.get("overrules", base.overrules))),
        idles=(*base.idles, *reader.listed(Idle, "idles", data.get("idles", []))),
        ignored=(*base.ignored, *map(str, data.get("ignored", []))),
        effects={**base.effects, **table.effects, **data.get("effects", {})},
        priced={**base.priced, **table.priced, **data.get("priced", {})},
        decides=(*base.decides, *reader.listed(Decision, "decides", of_both["decides"])),
        workload=(*base.workload, *reader.listed(WorkloadSetting, "workload", of_both["workload"])),
        **joined,
    )
    older = reader.before(found, data.get("before", {}), beside)
    if problems:
        raise InputError(problems)
    return replace(found, before=older)


class _Reader:
    """Reads the sections of one document; collects problems. `known`: the names of a section, the words of a field."""

    def __init__(self, document: Document, problems: list[Problem], known: Mapping[str, Collection[str]]) -> None:
        self._document, self._problems, self._known = document, problems, known

    def check(self, keys: Keys, word: str, kind: str) -> None:
        """Notes a word that is none of the known ones of its kind."""
        if word not in self._known[kind]:
            near = "" if kind == "schedules" else did_you_mean(word, self._known[kind])
            given = f"{word!r} " if kind == "until" else ""
            self._problems.append(self._document.problem(keys, f"{given}{_UNKNOWN[kind]}{near}"))

    def named(self, cls: type[Part], section: str, data: Mapping[str, Any]) -> dict[str, Part]:
        """The entries of a section by their names, which are schedules or axes."""
        for name in data:
            self.check((section, name), name, section)
        return {name: self._built(cls, (section, name), one) for name, one in data.items()}

    def listed(self, cls: type[Part], section: str, data: Sequence[Mapping[str, Any]]) -> list[Part]:
        """The entries of a section that is a list."""
        for i, one in enumerate(data):
            if cls is Requirement:
                self._condition((section, i, "holds"), str(one.get("holds", "")))
            for kind in {"decides": ("number",), "requires": ("until",)}.get(section, ()):
                self.check((section, i, kind), str(one.get(kind, "")), kind)
        return [self._built(cls, (section, i), one) for i, one in enumerate(data)]

    def kept(self, inherited: Sequence[Requirement], lifted: Sequence[str]) -> tuple[Requirement, ...]:
        """Rules of the base but for those lifted by name."""
        names = [one.name for one in inherited]
        for name in lifted:
            if name not in names:
                self._problems.append(self._document.problem(("lifts",), f"no rule{did_you_mean(str(name), names)}"))
        return tuple(one for one in inherited if one.name not in lifted)

    def before(
        self, found: Framework, changes: Mapping[str, Mapping[str, Any]], beside: Path | None
    ) -> dict[str, Framework]:
        """The contracts of releases before those that the changes name, each over the next newer one, oldest first."""
        for until in changes:
            self.check(("before", until), until, "before")
        older, newer = dict[str, Framework](), found
        for until in (one for one in reversed(found.releases) if one in changes):
            place = ("before", until)
            lines = {keys[2:]: line for keys, line in self._document.lines.items() if keys[:2] == place}
            newer = framework_of(Document(self._document.name, changes[until], lines), found.name, beside, newer)
            older = {until: newer, **older}
        return older

    def _condition(self, keys: Keys, text: str) -> None:
        try:
            parse(text)
        except ConstraintError as error:
            self._problems.append(self._document.problem(keys, f"{text!r}: {error}"))

    def _built(self, cls: type[Part], keys: Keys, one: Mapping[str, Any]) -> Part:
        """One entry with its source. Raises `InputError` for a value that is none of its field."""
        allowed = [field.name for field in fields(cls)]
        for key in one:
            if key not in allowed:
                what = f"unknown key{did_you_mean(key, allowed, self._problems)}"
                self._problems.append(self._document.problem((*keys, key), what))
        if not one.get("source"):
            self._problems.append(self._document.problem(keys, "names no source: the framework's file and release"))
        try:
            return from_plain(cls, {"source": "", **one})
        except ValueError as error:
            raise InputError([*self._problems, self._document.problem(keys, str(error))]) from None
