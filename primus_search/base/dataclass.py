"""`dataclass` of the standard library with methods that classes share: a class is defined in a third of the time.

The library compiles six methods of each class, which for the 300 classes of a search takes 0.25 s of every command.
Here each class compiles its `__init__`, and the other methods read the fields. There is no `InitVar` and no `order`.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, asdict, field, fields, is_dataclass, replace
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NoReturn

__all__ = ["MISSING", "asdict", "dataclass", "field", "fields", "is_dataclass", "replace"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        cls: type | None = None, /, *, frozen: bool = False, eq: bool = True, repr: bool = True, **layout: bool
    ) -> Any:
        """The decorator; `layout` is `slots` and `kw_only`."""

        def made(cls: type) -> type:
            # Said as the library says it, so that a frozen class of the library may extend this one.
            is_under = any(base.__dataclass_params__.frozen for base in cls.__mro__[1:] if is_dataclass(base))
            plain = dataclasses.dataclass(init=False, repr=False, eq=False, frozen=is_under, **layout)(cls)
            plain.__dataclass_params__.frozen = frozen
            methods = (
                {"__init__": _init_of(plain)} | (_FROZEN if frozen else {}) | ({"__repr__": _shown} if repr else {})
            )
            methods |= _PICKLED if frozen and layout.get("slots") else {}
            methods |= _comparisons(plain, frozen) if eq else {}
            for name, method in methods.items():
                if plain.__dict__.get(name) is None:  # `__hash__` is None where a class has an `__eq__` of its own
                    setattr(plain, name, method)
            return plain

        return made if cls is None else made(cls)


def _init_of(cls: Any) -> Callable[..., None]:
    """`__init__`: sets every field once, then calls `__post_init__`."""
    names: dict[str, Any] = {"_set": object.__setattr__, "_absent": MISSING}
    given, by_name, body = ["self"], list[str](), ["pass"]
    for one in fields(cls):
        name, value, default = one.name, one.name, ""
        if one.default_factory is not MISSING:
            names[f"_{name}"], default = one.default_factory, "=_absent"
            value = f"_{name}() if {name} is _absent else {name}" if one.init else f"_{name}()"
        elif one.default is not MISSING:
            names[f"_{name}"], default = one.default, f"=_{name}"
            value = name if one.init else f"_{name}"
        elif not one.init:
            continue
        if one.init:
            (by_name if one.kw_only else given).append(name + default)
        body.append(f"_set(self, {name!r}, {value})")
    body += ["self.__post_init__()"] if hasattr(cls, "__post_init__") else []
    given += ["*", *by_name] if by_name else []
    exec(f"def __init__({', '.join(given)}):\n " + "\n ".join(body), names)
    made: Callable[..., None] = names["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _comparisons(cls: Any, frozen: bool) -> dict[str, Any]:
    """`__eq__` of the fields that compare, and `__hash__` of those of a frozen class; none of another."""
    compared = _values([one.name for one in fields(cls) if one.compare])
    hashed = _values([one.name for one in fields(cls) if (one.compare if one.hash is None else one.hash)])

    def equal(self: Any, other: Any) -> bool:
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    return {"__eq__": equal, "__hash__": (lambda self: hash(hashed(self))) if frozen else None}


def _values(names: list[str]) -> Callable[[Any], Any]:
    """Values of an object's fields, as something to compare or to hash."""
    return attrgetter(*names) if len(names) > 1 else lambda self: tuple(getattr(self, name) for name in names)


@recursive_repr()
def _shown(self: Any) -> str:
    shown = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{self.__class__.__qualname__}({shown})"


def _refuse(self: Any, name: str, value: Any = None) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for one, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)


_FROZEN = {"__setattr__": _refuse, "__delattr__": _refuse}
_PICKLED = {"__getstate__": _state, "__setstate__": _restore}
"""Methods that frozen classes share, and those of them that have slots alone."""
