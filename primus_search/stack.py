"""The software stack: which kernels, fusions, overlaps and overheads a training framework brings to a device."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One framework release on one vendor's libraries. Every value is sourced or fitted, with its date, in YAML."""

    name: str
