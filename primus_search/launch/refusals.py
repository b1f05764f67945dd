"""The settings of a job as its framework resolves them, and what the framework refuses.

    judged("megatron", {"num_layers": "46", "pipeline_model_parallel_size": "4", ...}, world=32)

`spaces/keys/arguments/RELEASE.tsv` has every argument of a release with its default and type, written by a tool from
the framework's own parser. `spaces/keys/refusals/NAME.yaml` has the framework's resolutions and refusals in its own
order, each with its source by release. Given values are laid over the defaults, and the rows applied one by one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from primus_search.base.guards.values import finite_number, whole_number
from primus_search.files.argument_tables import Argument, arguments, flags_of
from primus_search.files.expressions import FUNCTIONS, filled_in, parsed, value_of
from primus_search.files.known_keys import key_table
from primus_search.launch.contract import is_off
from primus_search.models.layer_pattern import layer_pattern
from primus_search.values.layout import expand
from primus_search.values.machine.framework import Settings

TE_VERSION = 2.13
"""Transformer Engine that is taken where a job does not name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A resolution (`sets`) or a refusal (`legal`, `reason`, `cure`) that applies `when` an expression holds.

    is_advice  the framework's pages say so, and no line of it refuses the job
    names      what its expressions read; `variables`: of them those of the environment that say whether it applies
    """

    name: str
    when: str
    legal: str
    reason: str
    cure: str
    sets: Mapping[str, str]
    source: str
    is_advice: bool
    names: frozenset[str]
    variables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a framework does not start a job, or advises against it, what to change, and the line of the framework."""

    name: str
    reason: str
    cure: str
    source: str
    is_advice: bool = False

    def __str__(self) -> str:
        return f"{self.reason}; {self.cure} ({self.source})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A release of a framework with its tables: `arguments`, and the rows of some files that name `rows` as source.

    short  the list of known keys whose `short` names settings with dots for rows, beside the last parts of their names
    below  path of the checks that it runs of those; what a job does not give, its classes decide: rows that read it are
           left out
    given  between a setting and its value in its files; empty for a command line, whose flags cures are written in
    checks  whether its parser refuses a word that is none of an argument's choices in settings without a flag, too
    """

    arguments: str
    rows: tuple[tuple[str, str], ...]
    short: str = ""
    below: str = ""
    given: str = ""
    checks: bool = False


RELEASES: Mapping[str, tuple[Release, ...]] = {
    "megatron": tuple(
        Release(arguments=f"megatron@{core}", rows=(("megatron", core),)) for core in ("core_0.20", "core_0.16")
    ),
    "torchtitan": tuple(
        Release(arguments=f"torchtitan@{at}", rows=(("torchtitan", at),), short="torchtitan", checks=checks)
        for at, checks in (("0.3.0", True), ("0.2.2", False))  # of 0.2.2 words in a TOML are as they stand
    ),
    "nemo": (
        Release(
            arguments="nemo", rows=(("nemo", "nemo"), ("megatron", "core_0.20")), below="megatron/core/", given="="
        ),
    ),
    "primus": (Release(arguments="primus", rows=(("megatron", "core_0.16"), ("primus", "primus")), given=": "),),
}
"""Releases of a contract, newest first. Primus runs the checks of the Megatron that it pins, then its own;
Megatron-Bridge those of Megatron's classes."""


@lru_cache(maxsize=8)
def rows(release: Release) -> tuple[Row, ...]:
    """Resolutions and refusals of a release, in the framework's own order."""
    listed = [
        (one, source)
        for name, source in release.rows
        for one in key_table(f"refusals/{name}")
        if source in one["source"] and (name == source or one["source"][source].startswith(release.below))
    ]
    listed.sort(key=lambda pair: pair[0].get("at") != "before")
    return tuple(_row(one, source) for one, source in listed)


def _row(one: Mapping[str, Any], source: str) -> Row:
    when, legal, sets = str(one.get("when", "True")), str(one.get("legal", "True")), one.get("set", {})
    text = _TEXT.sub("", " ".join((when, legal, *sets.values())))
    return Row(
        name=one["name"],
        when=when,
        legal=legal,
        reason=str(one.get("reason", "")),
        cure=str(one.get("cure", "")),
        sets=sets,
        source=one["source"][source],
        is_advice=one.get("advice", False),
        names=frozenset(_NAME.findall(text)) - _WORDS - {*_BOUND.findall(text)},
        variables=tuple(_VARIABLE.findall(f"{when} {legal}")),
    )


_NAME, _TEXT, _BOUND = re.compile(r"\b[a-z_]\w*"), re.compile(r"'[^']*'"), re.compile(r"\bfor (\w+) in\b")
_WORDS = frozenset(("and", "or", "not", "in", "is", "if", "else", "for", "list", *FUNCTIONS))


def release_of(name: str, given: Settings) -> Release:
    """The release that a contract names (`megatron@core_0.16`), else the newest that knows most flags of a file."""
    known = RELEASES[name.partition("@")[0]]
    named_one = (one for one in known if one.arguments == name)
    return next(named_one, None) or min(known, key=lambda one: _num_unknown(one, given))


def _num_unknown(release: Release, given: Settings) -> int:
    return sum(key not in arguments(release.arguments) for key in named(release, given))


def started_by(name: str, given: Settings, world: int, device: int | None) -> str:
    """Another release that knows as many flags of a job that one refuses, and starts it; empty where none does."""
    first = release_of(name, given)
    most = _num_unknown(first, given)
    known = (one for one in RELEASES[name.partition("@")[0]] if one is not first and _num_unknown(one, given) <= most)
    return next((one.arguments for one in known if not refused(one.arguments, given, world, device)), "")


def refused(name: str, given: Settings, world: int, device: int | None) -> list[Refusal]:
    """What a framework refuses of a job; empty where it starts. Arguments as those of `judged`."""
    return [one for one in judged(name, given, world, device) if not one.is_advice]


def judged(name: str, given: Settings, world: int, device: int | None) -> list[Refusal]:
    """What a framework refuses of a job on `world` GPUs, and what it advises against; empty for a framework without
    rows and a job without settings.

    name    of a contract, with or without its release
    given   settings by the names of arguments: texts, lists of texts, True for a bare switch; `env_NAME` is a variable
            of the job's environment, and rows that read one that is not given are left out
    device  major number of the devices' architecture (`Accelerator.capability`); None leaves out rows that read it
    """
    if name.partition("@")[0] not in RELEASES or not given:
        return []
    release = release_of(name, given)
    settings, problems = resolved_start(release, given, world, device)
    unknown = frozenset(key for key, value in named(release, given).items() if _is_unknown(value))
    for row in rows(release):
        if row.names & unknown:
            continue
        if release.below and row.source.startswith(release.below) and not row.names <= settings.keys():
            continue
        if any(key not in settings for key in row.variables):
            continue
        try:
            if not value_of(parsed(row.when), settings.get):
                continue
            if not value_of(parsed(row.legal), settings.get):
                reason, cure = (filled_in(text, settings.get) for text in (row.reason, row.cure))
                problems.append(Refusal(row.name, reason, spelled(release, cure), row.source, row.is_advice))
            settings.update({key: value_of(parsed(text), settings.get) for key, text in row.sets.items()})
        except (TypeError, ZeroDivisionError, KeyError, IndexError, ValueError, AttributeError):
            continue  # a value of another kind than the row expects: unknown, not refused
    return problems


def spelled(release: Release, cure: str) -> str:
    """A cure with Megatron's flags as the files of a release give settings: `a_b: 2` for `--a-b 2`, `a: false` for
    `--no-a`."""
    if not release.given:
        return cure
    table, flags = arguments(release.arguments), flags_of(RELEASES["megatron"][0].arguments)
    keys: dict[str, str] = {key.rpartition(".")[2]: key for key in reversed(tuple(table))}

    def setting(found: re.Match[str]) -> str:
        word = str(found["flag"]).replace("-", "_")
        name, is_set = (word, True) if word in keys else flags.get(word, (word, True))
        key, value = keys.get(name, name), found["value"] or ""
        if not is_set or (key in table and table[key].kind == "flag" and not (found["without"] or found["rest"])):
            return f"{key}{release.given}{str(is_set != bool(found['without'])).lower()}{found['rest'] or value}"
        if found["without"] or found["rest"]:
            return f"{found['without'] or ''}{key}{found['rest'] or ''}"
        return f"{key}{value.replace(' ', release.given, 1)}"

    return _FLAG.sub(setting, cure)


_FLAG = re.compile(
    r"(?P<without>\b(?:leave out|without|no) )?--(?P<flag>[a-z][\w-]*)"
    r"(?:(?P<rest> (?:alone|with|or|and|a|at|of)\b)|(?P<value> [\w.]+))?"
)
"""A flag in a cure with what stands before it, and what follows: a word of the sentence or its value."""


def resolved_start(
    release: Release, given: Settings, world: int, device: int | None
) -> tuple[dict[str, Any], list[Refusal]]:
    """The given settings over the defaults of a release, typed, before any row; and values of another type."""
    table, problems = arguments(release.arguments), list[Refusal]()
    settings = {one.name: one.default for one in table.values()}
    for key, value in named(release, given).items():
        if is_variable(key):
            settings[key] = str(value)
        if key not in table:
            is_left_out = is_off(value) and not release.below  # else a word of it, `none`
            settings.setdefault(key, None if is_left_out else value)  # a fact of the model that a row may read
            continue
        if _is_unknown(value):
            continue
        try:
            settings[key] = typed(table[key], value, is_parsed=bool(table[key].flags) or release.checks)
        except ValueError as error:
            source = f"arguments of {release.arguments}"
            problems.append(Refusal(key, str(error), "write one", source))
    settings |= _shortened(release, settings, given)
    settings |= {"world_size": world, "device_arch": device, "te_version": TE_VERSION}
    settings["cuda_graph_modules"] = settings.get("cuda_graph_modules") or settings.get("cuda_graph_scope") or []
    if text := settings.get("pipeline_model_parallel_layout"):
        parts = expand(str(text))
        counted = {name: sum(part.count(letter) for part in parts) for name, letter in _IN_LAYOUT.items()}
        settings |= {"layout_stages": len(parts)} | counted
    settings["offload_modules"] = settings.get("offload_modules") or []
    if release.below:
        words = {key.rpartition(".")[2] for key, one in table.items() if one.default == "none"}
        settings |= {key: "none" for key in words & settings.keys() if settings[key] is None}  # a word of these fields
        of_class = {key.partition(".")[2]: one.default for key, one in table.items() if key.startswith("optimizer.")}
        laid = {key.partition(".")[2] for key in table if key.startswith("mixed_precision.")}
        settings = {key: one for key, one in of_class.items() if key not in laid} | settings  # of every recipe
        return {key: _of_class(value) for key, value in settings.items()}, problems
    settings |= {"virtual_pipeline_model_parallel_size": None, "gtp_weight_remat_size": 1, "expert_gtp": 1}
    settings["global_batch_size_given"] = settings.get("global_batch_size")
    return settings, problems


_IN_LAYOUT = {"layout_decoders": "t", "layout_mtp": "m"}
"""Letters of a pipeline layout whose layers rows count."""


def _is_unknown(value: Any) -> bool:
    """Whether a value is a variable without one, of a setting that moves nothing, or of a file that is not here."""
    return str(value)[:1] == "$"


def _of_class(value: Any) -> Any:
    """A value as a class of the framework holds it: numbers of texts, number formats by their names."""
    if isinstance(value, list):
        return [_of_class(one) for one in value]
    text = str(value).removeprefix("torch.")
    number = finite_number(text) if isinstance(value, str) else None
    if number is None:
        return _FORMATS.get(text, value)
    return number if (whole := whole_number(text)) is None else whole


_FORMATS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""Number formats as the classes of a job have them, and as arguments do."""


def _shortened(release: Release, settings: Settings, given: Settings) -> dict[str, Any]:
    """Settings with dots under the names that rows have for them, and what no argument is: facts of the model."""
    if not release.short:
        return {}
    known = {**{key: value for key, value in given.items() if key not in settings}, **settings}
    listed = sorted(known, key=lambda key: key.startswith(("training.", "parallelism.")))  # theirs of several so called
    short: Mapping[str, str] = key_table(release.short)["short"]
    return {key.rpartition(".")[2]: known[key] for key in listed} | {
        name: known[key] for name, key in short.items() if key in known
    }


VARIABLE = "env_"
"""What begins the name of a variable of the environment."""
_VARIABLE = re.compile(r"\benv_[A-Z]\w+")


def is_variable(key: str) -> bool:
    """Whether a key is a variable of the job's environment."""
    return _VARIABLE.fullmatch(key) is not None


def variables_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables of an environment that rows of any framework read, under the names that these have for them."""
    return {name: environ[of_job] for name in _variables() if (of_job := name.removeprefix(VARIABLE)) in environ}


@lru_cache(maxsize=1)
def _variables() -> frozenset[str]:
    read = [row for releases in RELEASES.values() for one in releases for row in rows(one)]
    return frozenset(name for row in read for name in row.variables)


def named(release: Release, given: Settings) -> dict[str, Any]:
    """Settings under the names of arguments: those that a file has by the flag that sets them, `no_X` among them."""
    flags = flags_of(release.arguments)
    found: dict[str, Any] = {}
    for key, value in given.items():
        name, is_set = flags.get(key, (key, True))
        found[name] = value if is_set else is_off(value)
    return found


def typed(one: Argument, value: Any, *, is_parsed: bool) -> Any:
    """A given value as the type of its argument. Raises ValueError for one of another type or none of its choices.

    is_parsed: a parser reads it, which refuses what is none of them; a class of settings takes any
    """
    if one.kind == "flag":
        if one.flags and not isinstance(value, bool) and str(value).lower() not in SAID:
            raise ValueError(f"{one.name}: {str(value)[:80]!r} follows a switch, which takes no value")
        return not is_off(value)
    words = [str(part) for part in value] if isinstance(value, list) else _BRACKETS.sub(" ", str(value)).split()
    if value is None or (one.default is None and str(value).lower() in ("none", "null")):
        return None
    if one.kind.startswith("list"):
        return [_whole(one, word) for word in words] if one.kind == "list[int]" else words
    if one.kind == "int":
        return _whole(one, str(value))
    if one.kind == "float":
        if (number := finite_number(str(value))) is None:
            raise ValueError(f"{one.name}: {str(value)[:80]!r} is not a number")
        return number
    if one.kind == "pattern":
        return _pattern(value)
    if one.choices and is_parsed and str(value) not in map(str, one.choices):
        raise ValueError(f"{one.name}: {str(value)[:80]!r} is none of {', '.join(map(str, one.choices))}")
    return str(value)


SAID = ("none", "null", "")
"""Values of a switch of a command line as logs and mappings of arguments have them."""
_BRACKETS = re.compile(r"[\[\](),'\"]")


def _whole(one: Argument, text: str) -> int:
    number = whole_number(text.strip().removeprefix("-"))
    if number is None:
        raise ValueError(f"{one.name}: {text[:80]!r} is not a whole number")
    return -number if text.strip().startswith("-") else number


def _pattern(value: Any) -> Any:
    """A frequency of layers or a pair: a whole number, or one number for each."""
    if isinstance(value, list):
        value = ",".join(map(str, value))
    if (number := whole_number(str(value))) is not None:
        return number
    text = str(value).strip()
    if text[:1] in "[(":
        return list(
            layer_pattern(text.replace("(", "[").replace(")", "]") if "," in text and "*" not in text else text)
        )
    return [_number(word) for word in text.split(",")]


def _number(text: str) -> int:
    number = whole_number(text.strip())
    if number is None:
        raise ValueError(f"{text[:80]!r} is not a whole number")
    return number
