"""What a knob is: the kind of its values, the cost terms that read it, how its values are printed and read back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, Flag, IntEnum, IntFlag, auto
from functools import reduce
from operator import or_
from typing import Any

from primus_search.values.layout import Layout

KnobValue = int | bool | str | Layout
"""One value of a knob. Members of `Fp8`, `Recompute`, ... are ints; only schedules are strings."""


class Kind(Enum):
    """What values a knob takes.

    DEGREE    ranks that share the work                  COUNT   a whole number of something else
    SWITCH    true or false                              CHOICE  one member of the enumeration `words`
    MODULES   members of the flags `words`, combined     SCHEDULE, LAYOUT  a code into the table's own vocabulary
    """

    DEGREE = auto()
    COUNT = auto()
    SWITCH = auto()
    CHOICE = auto()
    MODULES = auto()
    SCHEDULE = auto()
    LAYOUT = auto()


class Enters(Flag):
    """Terms of the cost model that read a knob. A term is computed once for rows that agree in what it reads.

    KERNELS  what one device computes in a piece (layer, embedding, head)     HOPS     bytes between pipeline stages
    TRAFFIC  what a piece exchanges or waits for                              REPLICA  gradients and optimizer
    GATHERS  exchange of weights sharded over replicas (pp decides how many)  STATE    memory of weights and optimizer
    STEADY   share of a step in which experts' exchange may be hidden         BATCH    memory of one micro-batch
    REPEATS  recompute of a layer in backward                                 MOMENTS  what a rank holds at once
    SHAPE    layers of stages and their order
    """

    KERNELS = auto()
    TRAFFIC = auto()
    GATHERS = auto()
    STEADY = auto()
    REPEATS = auto()
    SHAPE = auto()
    HOPS = auto()
    REPLICA = auto()
    STATE = auto()
    BATCH = auto()
    MOMENTS = auto()
    INSIDE = KERNELS | TRAFFIC
    LAYER = INSIDE | GATHERS | STEADY | REPEATS
    PIPELINE = SHAPE | REPLICA | MOMENTS
    TIME = LAYER | SHAPE | HOPS | REPLICA
    MEMORY = STATE | BATCH | MOMENTS


EXECUTION = Enters.INSIDE | Enters.REPLICA


class Scope(Flag):
    """Pieces of a model whose kernels and traffic (`Enters.INSIDE`) a knob changes."""

    OTHERS = auto()
    EXPERTS = auto()
    HEAD = auto()
    ALL = OTHERS | EXPERTS | HEAD


Row = Mapping[str, Any]
"""One candidate as words and numbers, as `Candidates.row` returns it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One knob.

    name           of the axis and of the column            kind       what values it takes
    summary        for the schema of space files            enters     terms of the cost model that read it
    default        value where a table does not give it; also its value where it has no effect
    off            value that stands for not using it, where that is not the default
    auto           what `auto` lists; None where that depends on the job (`space.auto`)
    memory_from    value from which on memory differs, the same for all below and for all above; 0: any two may differ
    scope          pieces whose kernels and traffic it changes; EXPERTS alone: `auto` is the default in a dense model
    is_outer       decides where layers and ranks go (`space.enumerate`); others are switches of the same layout
    detail_of      the knob without which this one has no effect
    detail_key     key under which the value of that knob may give this one's in a space file: `{full: 2}`
    followers      knobs that may change with it where the rules do not allow the change alone (`explain`)
    relief         values that take less memory, tried on a candidate that does not fit
    guess          value a sampler starts from; None: the first of the axis
    tried          place among the knobs whose other values a sampler tries one by one at its start; 0: not among them
    is_numeric     changes the values that training computes, not only their cost
    is_printed     the logs of every framework tell it, so a run and a candidate agree in it or differ
    variable       environment variable of AMD Primus that sets it       nickname   what labels and users write for it
    words          enumeration of a CHOICE or of MODULES
    aliases        further words for its values in space files      printed  words printed in place of members' names
    least, most, has_all   bounds of a number; `all` is stored as 0
    limit          field of a job: what `divisors` divide and `powers_of_two` do not exceed; empty where neither applies
    allowed        what a space file may hold, where kind and bounds do not say it
    label          its part of a candidate's one-line label, where a text is only shown for values other than the
                   default; None: `name=value`
    plain          how a comparison with another candidate says that this one has the default: `no DeepEP`
    said           its value in a sentence: another than the default, and the default; none where other words hold it
    """

    name: str
    kind: Kind
    summary: str
    enters: Enters
    default: KnobValue
    off: KnobValue = None  # type: ignore[assignment]  # in a row: as the default
    auto: tuple[KnobValue, ...] | None = None
    memory_from: int = 0
    scope: Scope = Scope.ALL
    is_outer: bool = False
    detail_of: str = ""
    detail_key: str = ""
    followers: tuple[str, ...] = ()
    relief: tuple[KnobValue, ...] = ()
    guess: KnobValue | None = None
    tried: int = 0
    is_numeric: bool = False
    is_printed: bool = False
    variable: str = ""
    nickname: str = ""
    words: type[IntEnum] | type[IntFlag] | None = None
    aliases: Mapping[str, int] = field(default_factory=dict)
    printed: Mapping[int, str] = field(default_factory=dict)
    least: int = 1
    most: int | None = None
    has_all: bool = False
    limit: str = ""
    allowed: str = ""
    label: str | Callable[[Row], str] | None = None
    plain: str = ""
    said: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        if self.off is None:
            object.__setattr__(self, "off", self.default)

    @property
    def has_words(self) -> bool:
        """Whether tables and files print its values as words, which have no order."""
        return self.kind in (Kind.CHOICE, Kind.MODULES, Kind.SCHEDULE, Kind.LAYOUT)

    @property
    def is_switch(self) -> bool:
        """Whether it changes the time of the same computation on the same layout: fused kernels, overlaps, graphs.

        Any legal row stays a configuration, if not a legal one, with such a knob at its default.
        """
        beside = Enters.BATCH | Enters.STATE if self.kind is Kind.SWITCH else Enters.BATCH
        is_execution = bool(self.enters & EXECUTION) and not self.enters & ~(EXECUTION | beside)
        return is_execution and not self.is_numeric and self.kind is not Kind.DEGREE

    @property
    def is_coded(self) -> bool:
        """Whether its column holds codes into a vocabulary that travels with the table."""
        return self.kind in (Kind.SCHEDULE, Kind.LAYOUT)

    @property
    def is_doubled(self) -> bool:
        """Whether twice and half its value are its neighbours."""
        return self.kind in (Kind.DEGREE, Kind.COUNT) and self.least == 1 and not self.has_all

    @property
    def column_default(self) -> int | bool:
        """The default as the column of a table holds it."""
        return self.default if isinstance(self.default, bool) else 0 if self.is_coded else int(self.default)  # type: ignore[arg-type]

    @property
    def members(self) -> dict[str, int]:
        """Values of a CHOICE or of MODULES by the words that `word` prints and their modules."""
        members = self.words.__members__.items() if self.words is not None else ()
        return {name.lower(): int(value) for name, value in members} | {w: n for n, w in self.printed.items()}

    def word(self, value: Any) -> Any:
        """A value as tables and files print it: words for enumerations and layouts, numbers and switches as they are.

        MODULES: none, a word for the whole value, or modules joined by '+'.
        """
        if self.kind is Kind.LAYOUT:
            return str(value)
        if self.words is None:
            return value
        if int(value) in self.printed:
            return self.printed[int(value)]
        if self.kind is Kind.CHOICE or not value:
            return self.words(int(value)).name.lower()  # type: ignore[union-attr]
        return "+".join(one.name.lower() for one in self.words if one & value and one.name)

    def code(self, word: Any) -> int:
        """The value of a word of a CHOICE or of MODULES that `word` printed; raises KeyError for another."""
        parts = str(word).lower().split("+") if self.kind is Kind.MODULES else [str(word).lower()]
        known = self.members
        return reduce(or_, [known[part] for part in parts])

    def label_of(self, row: Row) -> str:
        """Its part of the one-line label of a candidate."""
        if callable(self.label):
            return self.label(row)
        text = f"{self.name}={{{self.name}}}" if self.label is None else self.label
        return text.format_map(row) if row[self.name] != self.word(self.default) else ""

    def told(self, row: Row) -> str:
        """Its value in a comparison with another candidate, the default included."""
        if self.kind is Kind.SCHEDULE:
            return str(row[self.name])
        if self.kind is Kind.LAYOUT:
            return f"layout:{row[self.name]}"
        if row[self.name] == self.word(self.default) and self.plain:
            return self.plain
        return self.label_of(row) or f"{self.name}={row[self.name]}"

    def in_words(self, row: Row) -> str:
        """Its value in a sentence: `partial CUDA graph`; empty where words of another knob say it."""
        if self.said is None:
            return ""
        word = str(row[self.name]).replace("_", " ").replace("+", ", ")
        return self.said[row[self.name] == self.word(self.default)].format_map({self.name: word})
