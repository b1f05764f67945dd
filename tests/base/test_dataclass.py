"""`base.dataclass.dataclass` makes what the standard library's makes, class by class of the package's kinds."""

import copy
import dataclasses
import inspect
import pickle
from dataclasses import FrozenInstanceError, field
from itertools import product
from typing import Any, ClassVar

import pytest

from primus_search.base.dataclass import dataclass


def _classes(make: Any, **options: bool) -> list[type]:
    class Plain:
        """Fields with and without defaults, one that does not compare, one that nobody gives."""

        kind: ClassVar[str] = "plain"
        a: int
        b: float = 2.0
        c: list[int] = field(default_factory=list)
        d: str = field(default="d", compare=False, repr=False)
        e: int = field(default=5, init=False)

    class One:
        """A single field."""

        a: Any

    class Checked:
        """A check behind the fields, a word of its own, and equality of its own."""

        a: int
        seen: list[int] = field(default_factory=list, init=False, compare=False)

        def __post_init__(self) -> None:
            self.seen.append(self.a)

        def __repr__(self) -> str:
            return f"<{self.a}>"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self))

    class Empty:
        """No field."""

    return [make(**options)(one) for one in (Plain, One, Checked, Empty)]


LAYOUTS = [
    {"frozen": frozen, "slots": slots, "kw_only": kw_only, "eq": eq, "repr": shows}
    for frozen, slots, kw_only, eq, shows in product((True, False), repeat=5)
]


@pytest.mark.parametrize("options", LAYOUTS, ids=str)
def test_a_class_is_that_of_the_standard_library(options: dict[str, bool]) -> None:
    for ours, theirs in zip(_classes(dataclass, **options), _classes(dataclasses.dataclass, **options), strict=True):
        fields = [(one.name, one.default, one.init, one.compare, one.kw_only) for one in dataclasses.fields(theirs)]
        assert [(f.name, f.default, f.init, f.compare, f.kw_only) for f in dataclasses.fields(ours)] == fields
        given = inspect.signature(ours).parameters.values()
        assert [(one.name, one.kind) for one in given] == [
            (one.name, one.kind) for one in inspect.signature(theirs).parameters.values()
        ]
        words = {"a": 1} if any(name == "a" for name, *_ in fields) else {}
        mine, its = ours(**words), theirs(**words)
        for name, *_ in fields:
            assert getattr(mine, name) == getattr(its, name)
        assert (repr(mine) == repr(its)) or " object at " in repr(its)
        assert (mine == ours(**words)) is (its == theirs(**words))
        assert mine != its
        assert (ours.__hash__ is None) is (theirs.__hash__ is None)
        assert hasattr(ours, "__slots__") is hasattr(theirs, "__slots__")
        for changed in ({"a": 2}, {"d": "e"}) if len(fields) > 2 else ():
            assert (mine == dataclasses.replace(mine, **changed)) is (its == dataclasses.replace(its, **changed))
        if options["frozen"] and words:
            with pytest.raises(FrozenInstanceError):
                mine.a = 2
            with pytest.raises(FrozenInstanceError):
                del mine.a


def test_equal_values_have_one_hash() -> None:
    plain, one, *_ = _classes(dataclass, frozen=True, slots=True)
    assert hash(one(1)) == hash(one(1))
    assert len({one(1), one(1), one(2)}) == 2
    with pytest.raises(TypeError, match="unhashable"):  # a field that is a list
        hash(plain(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    a: int
    b: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wider(_Kept):
    c: int = 0


@pytest.mark.parametrize("value", [_Kept(a=1), _Wider(a=1, b=(2,), c=3)])
def test_a_value_is_pickled_and_copied(value: _Kept) -> None:
    for again in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
        assert again == value
        assert repr(again) == repr(value)


def test_a_field_may_compare_and_not_be_hashed() -> None:
    @dataclass(frozen=True, slots=True)
    class Named:
        name: str
        sizes: dict[str, int] = field(default_factory=dict, hash=False)

    assert hash(Named("a", {"b": 1})) == hash(Named("a")) and Named("a", {"b": 1}) != Named("a")


def test_a_frozen_class_of_the_library_may_extend_one() -> None:
    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Library(_Wider):
        d: int = 0

    assert Library(a=1, d=2) == Library(a=1, d=2) != Library(a=1)
    with pytest.raises(AttributeError):
        Library(a=1).d = 3  # type: ignore[misc]


def test_missing_and_unknown_arguments_are_refused() -> None:
    for words in ({}, {"a": 1, "z": 2}):
        with pytest.raises(TypeError, match="argument"):
            _Kept(**words)  # type: ignore[arg-type]
