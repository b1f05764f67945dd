"""The hardware file of an accelerator as its driver or framework prints it: `NVIDIA H100 80GB HBM3`."""

import re

from primus_search.declare.search_path import FileKind, names

OTHER_CARDS = ("pcie", "nvl", "gh200")
"""Words of cards that carry a module's name without its clocks, memory or links; they have no file."""

USUAL = {"a100": "a100_80"}
"""The file of a name that has several and whose memory is not printed."""


def hardware_named(device: str) -> str | None:
    """The hardware file of a printed name; None where none, or none surely, describes it.

    A file is named by its device, and by its memory where there are several (`a100_40`, `h100_96gb`).
    """
    words = set(re.split(r"[^a-z0-9]+", device.lower()))
    if words & set(OTHER_CARDS):
        return None
    fitting = [name for name in names(FileKind.HARDWARE) if name.split("_")[0] in words]
    by_memory = [name for name in fitting if set(_memory(name)) & words]
    if by_memory:
        return by_memory[0]
    plain = [name for name in fitting if "_" not in name]
    usual = [USUAL[name.split("_")[0]] for name in fitting if name.split("_")[0] in USUAL]
    return next(iter([*plain, *usual]), None)


def _memory(name: str) -> tuple[str, ...]:
    """How the memory in a file's name is printed."""
    size = name.partition("_")[2].removesuffix("gb")
    return (f"{size}gb", f"{size}gib") if size.isdigit() else ()
