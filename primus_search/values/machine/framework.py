"""A framework as a contract: what a launcher can express, under which keys, what it requires and what it refuses.

Shipped contracts are files, `hardware/frameworks/*.yaml`, where each entry names the framework's file, line and
release. `space.rules` turns a contract into legality rules, `export` writes and reads its keys.

    megatron.schedules["interleaved"].most is None          # any number of virtual stages from `least` on
    megatron.spellings["fp8"].values["mxfp8"]                   # {"fp8_format": "hybrid", "fp8_recipe": "mxfp8"}
    "sync_free_stage" in megatron.spellings                     # False: only its plain value is legal there
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from primus_search.values.lengths import PackedAs
from primus_search.values.model import Model

ANY = "any"
"""Name of the union of frameworks: what at least one launcher may express is legal."""

Settings = Mapping[str, Any]
"""Keys of a framework with the values that a launch file gives them."""
NOTHING: Settings = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A pipeline schedule the framework has: virtual stages per rank from `least` to `most` (None: no limit), keys.

    is_auto  whether a space that does not name schedules tries it
    beside   further settings that a file with this schedule needs
    reads    other settings of a file that start it, too
    """

    least: int = 1
    most: int | None = None
    is_auto: bool = True
    keys: Settings = field(default_factory=dict)
    beside: Settings = field(default_factory=dict)
    reads: tuple[Settings, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """How one axis is written.

    key      of an axis of numbers: its value is the axis' value
    scale    the value of the axis over that of its setting (100: a share is written as a fraction)
    switch   settings without which a number has no effect and the axis is 0
    values   of an axis of words: the settings of each word that can be expressed ("true" and "false" for switches)
    beside   further settings that a file with that word needs, which do not tell the word from others
    reads    other settings that mean the same word, for files that others wrote
    modules  of recompute: the framework's name of each module that may be recomputed on its own, under `key`
    auto     words tried where a space leaves the axis out; empty: the usual ones that can be expressed
    """

    key: str = ""
    scale: float = 1.0
    switch: Settings = field(default_factory=dict)
    values: Mapping[str, Settings] = field(default_factory=dict)
    beside: Mapping[str, Settings] = field(default_factory=dict)
    reads: Mapping[str, tuple[Settings, ...]] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    auto: tuple[str, ...] = ()
    source: str = ""

    @property
    def keys(self) -> frozenset[str]:
        """Every key this knob may write or read."""
        settings = [
            self.switch,
            *self.values.values(),
            *self.beside.values(),
            *(one for many in self.reads.values() for one in many),
        ]
        return frozenset(({self.key} - {""}).union(*settings))


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A condition every job of the framework satisfies, in the language of constraints, and who says so.

    until          the release that lifted it; empty: none
    first_step     the framework starts such a job, and raises in its first step
    advised        it runs such a job, which its pages advise against
    drops_doubles  of rows that mean the same run it leaves one
    """

    name: str
    holds: str
    reason: str
    source: str
    until: str = ""
    first_step: bool = False
    advised: bool = False
    drops_doubles: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """An axis without effect where another axis has one of some words: rows that differ in it alone start one job."""

    axis: str
    where: str
    words: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A number of the stack that settings of a job decide; the same row reads a launch file and writes it.

    number      the field of the stack (`gradient_bytes`)
    settings    those of a job where the number is `value`
    reads       other settings of a file where it is, too
    formats     keys of number formats; in a job with the settings the number is the mean of their bytes
    value       null: what the setting `key` is set to
    absent      what the number is of a job without `key`, which is then not written
    per_rank    the number that makes this one grow with the data-parallel ranks in a job without `key`
    grows       by how much it does so in the framework, from `absent` on
    otherwise   what the number is of a job without the settings; null: what the stack has
    where       only of candidates whose axes have one of these words, or fit one of these patterns
    of_experts  only of models with experts
    is_part     whether the settings do more than the number says, which is told of them as of what is not priced
    """

    number: str
    source: str
    settings: Settings = field(default_factory=dict)
    reads: tuple[Settings, ...] = ()
    formats: tuple[str, ...] = ()
    value: Any = None
    key: str = ""
    absent: Any = None
    per_rank: str = ""
    grows: float = 0.0
    otherwise: Any = None
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    of_experts: bool = False
    is_part: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSetting:
    """Values of a workload that settings of a job make; the same row reads a launch file and writes it.

    settings  those of a job whose workload has `values`, by field
    keys      settings whose numbers are those of a field
    """

    source: str
    settings: Settings
    values: Mapping[str, Any]
    keys: Mapping[str, str] = field(default_factory=dict)
    of_experts: bool = False


@dataclass(frozen=True, kw_only=True)
class Framework:
    """One launcher of training jobs, at its newest release unless its name says another (`nemo@26.04`).

    release   what the entries were read in            vendors   whose devices it runs on; empty: any
    releases  those that differ, oldest first
    before    the contract of every release before one, by that release, oldest first
    stacks    the software stack that runs under it, by the vendor of the devices; else the hardware file's default
    stack_notes  what is said of that stack, by the vendor
    variants  the variant of that stack for models with a fact (`has_sinks`), by the fact
    overrules  rules of every job in whose place its own requirements are, by name
    lifted    requirements of earlier releases, each with the release that lifted it
    cautions  conditions of what runs for sure: jobs that do not hold them are taken, and were reported to fail
    spellings  how each axis is written; an axis that is not listed has its plain value only
    models    presets that the framework has a model of, and what it calls them
    flavors   other models of the framework by its name: the preset they are but for some fields, and those fields
    launchers what a program that starts the framework sets where a file does not, by the program's name
    options   options of the command that starts a job, by the name that a template of launch files has
    defaults  what the framework takes a key to be that a file does not set, where that is not absent, off or 1
    keys      the list of its keys with a verdict each (`spaces/keys/NAME.yaml`)
    ignored   keys of a launch file that change neither time nor memory, by name or prefix with `*`
    effects   keys that are read, not modelled, and what they would change: slower, faster, more or less memory
    priced    values of such keys that are priced, one or several; off where a key is not listed
    decides   numbers of the stack that settings of a job decide
    fixes     numbers of the stack that every job of it has; a release drops one with null
    workload  values of a workload that settings of a job make; a later row counts
    adapters  keys of low-rank adapters: rank, alpha, dropout, modules, switch; empty: it has none
    packing   by how rows are filled from documents the settings of files that fill them so, the first that holds
    checkout  the `file` of a checkout that tells its version, the pattern of its `numbers` and their `title`
    has_experts  whether the models of its jobs may have experts (`of_dense`)
    """

    name: str = ANY
    title: str = "any framework"
    release: str = ""
    releases: tuple[str, ...] = ()
    vendors: tuple[str, ...] = ()
    stacks: Mapping[str, str] = field(default_factory=dict)
    stack_notes: Mapping[str, str] = field(default_factory=dict)
    variants: Mapping[str, str] = field(default_factory=dict)
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    spellings: Mapping[str, Spelling] = field(default_factory=dict)
    requires: tuple[Requirement, ...] = ()
    overrules: tuple[str, ...] = ()
    lifted: tuple[Requirement, ...] = ()
    cautions: tuple[Requirement, ...] = ()
    idles: tuple[Idle, ...] = ()
    models: Mapping[str, str] = field(default_factory=dict)
    flavors: Mapping[str, Settings] = field(default_factory=dict)
    launchers: Mapping[str, Settings] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    defaults: Settings = field(default_factory=dict)
    keys: str = ""
    ignored: tuple[str, ...] = ()
    effects: Mapping[str, str] = field(default_factory=dict)
    decides: tuple[Decision, ...] = ()
    fixes: Settings = field(default_factory=dict)
    workload: tuple[WorkloadSetting, ...] = ()
    priced: Settings = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)
    packing: Mapping[PackedAs, Mapping[str, str]] = field(default_factory=dict)
    checkout: Mapping[str, str] = field(default_factory=dict)
    before: Mapping[str, "Framework"] = field(default_factory=dict)
    has_experts: bool = True

    @cached_property
    def spelled(self) -> frozenset[str]:
        """Every key that an axis or a schedule may write or read."""
        parts = [spelling.keys for spelling in self.spellings.values()]
        return frozenset().union(*parts, *({*one.keys, *one.beside} for one in self.schedules.values()))

    @cached_property
    def of_dense(self) -> "Framework":
        """The contract of jobs of dense models, without what is of experts alone."""
        decides = tuple(one for one in self.decides if not one.of_experts)
        workload = tuple(one for one in self.workload if not one.of_experts)
        return replace(self, has_experts=False, decides=decides, workload=workload)

    def of(self, model: Model | None) -> "Framework":
        """The contract of jobs of a model; of one that is not known, with experts."""
        return self if model is None or model.is_moe else self.of_dense

    @property
    def is_any(self) -> bool:
        """Whether this is the union of frameworks, not one of them."""
        return self.name == ANY

    @property
    def launcher(self) -> str:
        """The name without a release."""
        return self.name.partition("@")[0]

    def at(self, release: str) -> "Framework":
        """The contract of one of `releases`, bound by what its successors lifted, too."""
        newer = self.releases[self.releases.index(release) + 1 :]
        found = next((older for until, older in self.before.items() if until in newer), self)
        binding = tuple(one for one in found.lifted if one.until in newer)
        return replace(found, name=f"{self.name}@{release}", requires=(*found.requires, *binding))

    @property
    def until_first_step(self) -> "Framework":
        """The contract without the requirements that a job breaks only once it has started, and without advice."""
        return replace(self, requires=tuple(one for one in self.requires if not (one.first_step or one.advised)))

    def stack_of(self, vendor: str, variant: str = "") -> str | None:
        """The stack that runs under it on the devices of a vendor, in a variant; None where none is named."""
        own = self.stacks.get(vendor)
        return f"{own}{'-' if '@' in own else '@'}{variant}" if own and variant else own

    def runs_on(self, vendor: str) -> bool:
        """Whether the framework has a release for the devices of a vendor."""
        return not self.vendors or vendor in self.vendors


ANY_FRAMEWORK = Framework()
