"""How published tables call devices, and which hardware file a name means."""

import re

_DEVICES = (
    # pattern of a GPU's name or the notes beside it, hardware file; the first that matches
    (r"\bgh200\b", None),
    (r"\b(?:h100|h800|a100|h200)\b.*\b(?:pcie|nvl)\b", None),
    (r"gb300(?!\d)", "gb300"),
    (r"gb200(?!\d)", "gb200"),
    (r"\bb300(?!\d)", "b300"),
    (r"\bb200(?!\d)", "b200"),
    (r"\bh200(?!\d)", "h200"),
    (r"\bh800(?!\d)", "h800"),
    (r"\bh20(?!\d)", "h20"),
    (r"\bh100(?!\d).*\b96 ?gi?b", "h100_96gb"),
    (r"\bh100(?!\d)", "h100"),
    (r"\ba800(?!\d)", "a800"),
    (r"\ba100(?!\d).*\b40 ?gi?b", "a100_40"),
    (r"\ba100(?!\d)", "a100_80"),
    (r"mi250x?", "mi250x"),
    (r"mi300x", "mi300x"),
    (r"mi325x", "mi325x"),
    (r"mi350x", "mi350x"),
    (r"mi355x", "mi355x"),
)
"""How published tables call a device -> its hardware file; None: a device of another rate that has no file.

PCIe and NVL cards and GH200 carry the name of an SXM module without its clocks, memory or links.
"""

_MACHINES = (
    # pattern of a source, hardware file of its GPU's name, file of the machine it describes
    (r"simumax", "b200", "b200_limited"),
)
"""Publishers who measured the kernels of the machine their runs were made on, and found another rate than others."""


def hardware(gpu: str, notes: str = "", source: str = "") -> str | None:
    """The hardware file of a GPU as a table names it: `H100`, `NVIDIA H100-SXM5-80GB`, `AMD Instinct MI300X OAM`.

    A name nobody published yet may be that of a hardware file (`my_gpu.yaml` -> "My GPU"). Memory and card type may
    stand in the notes instead. A source may be known to describe a machine of its own.
    """
    file = _named(gpu, notes)
    own = (own for pattern, usual, own in _MACHINES if file == usual and re.search(pattern, source.lower()))
    return next(own, file)


def _named(gpu: str, notes: str) -> str | None:
    name = re.sub(r"\b(?:\d{1,5} ?x ?|dgx|hgx)(?=[a-z])", " ", re.sub(r"[-_/,()]+", " ", gpu.lower()))
    beside = re.sub(r"[-_/,()]+", " ", notes.lower()) if "h100" in name else ""
    for pattern, file in _DEVICES:
        memory_beside = beside if file == "h100_96gb" else ""
        if re.search(pattern, f"{name} {memory_beside}"):
            return file
    slug = "_".join(name.split())
    return slug if slug in hardware_names() else None


def is_other_card(gpu: str, text: str) -> bool:
    """Whether source, flags or notes say that a device is another card than its name: a PCIe or NVL one, or one whose
    power was limited to a figure that nobody knows.

    NVIDIA's H200 data sheet: NVL cards have up to 600 W and NVLink bridges, the SXM module 700 W and NVSwitch.
    """
    words = re.sub(r"[-_/,()]+", " ", text.lower())
    family = re.search(r"[a-z]+\d{2,3}", gpu.lower().replace(" ", ""))
    card = family is not None and re.search(rf"(?<![a-z]){family.group()} (?:pcie|nvl)\b(?! ?\d| gen)", words)
    limited = re.search(r"\bpower (?:limited|capped)\b|\b(?:limited|capped) power\b", words)
    return bool(card or (limited and not re.search(r"\bnot power (?:limited|capped)\b", words)))


def hardware_names() -> tuple[str, ...]:
    """Every hardware file there is, the user's own included."""
    from primus_search.declare.places import Kind, names

    return tuple(names(Kind.HARDWARE))
