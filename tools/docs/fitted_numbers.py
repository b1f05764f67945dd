"""The table of every fitted number of the hardware and stack files: docs/cost/fitted_numbers.md."""

import re
from collections.abc import Sequence

from primus_search.declare.search_path import FileKind, names
from primus_search.runs.calibrate.kernel_fit import SECTION, FittedLeaf, leaves
from tools import rendered


def page() -> str:
    """Every fitted, held or shared number of the hardware and stack files in reach, as Markdown.

    Numbers shared by all devices are listed once; tied numbers count once.
    """
    rows: list[tuple[str, FittedLeaf]] = []
    counts: list[tuple[str, int, int, int]] = []
    shared: dict[str, FittedLeaf] = {}
    kinds = (FileKind.HARDWARE, FileKind.STACK, FileKind.STACK_BASE)
    for path in (path for kind in kinds for path in names(kind).values()):
        name, text = path.stem, path.read_text(encoding="utf-8")
        found = leaves(text)
        shared |= {leaf.path: leaf for leaf in found if leaf.source.startswith("shared")}
        own = [(name, leaf) for leaf in found if leaf.source.startswith(("fitted", "held"))]
        rows += own
        if own:
            counts.append((name, count_fitted(text), _count(found, "network."), _count(found, "")))
    every = [*(("all", leaf) for leaf in shared.values()), *rows]
    return rendered("fitted_numbers.md", counts=counts, rows=every)


def _count(found: Sequence[FittedLeaf], below: str) -> int:
    return sum(leaf.source.startswith("fitted") and leaf.path.startswith(below) for leaf in found)


def count_fitted(text: str, but: frozenset[str] = frozenset()) -> int:
    """How many numbers of an accelerator or a stack were fitted, those of the keys in `but` aside.

    Numbers tied together are one. A hardware file's network and error bands are not the accelerator's.
    """
    own = [leaf for leaf in leaves(text) if leaf.source.startswith("fitted") and not leaf.path.startswith("network.")]
    own = [leaf for leaf in own if leaf.path.rpartition(".")[2] not in but]
    tied = {f"{SECTION}.{path}" for leaf in own for path in _tied_paths(leaf.source)}
    return len([leaf for leaf in own if leaf.path not in tied])


def _tied_paths(source: str) -> Sequence[str]:
    match = re.search(r"one number with ([\w., ]+)\)", source)
    return match[1].split(", ") if match else ()
