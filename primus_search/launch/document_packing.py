"""How rows are filled from documents in launch files, and the lengths that no file gives.

packing_in({"packing": True, "max_length": 8192}, keys)      # {"packing": "token_budget"}
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from primus_search.launch.contract import holds
from primus_search.values.lengths import BALANCED, PackedAs, Packing
from primus_search.values.machine.framework import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingKeys:
    """What a launcher calls the settings of packing. Conditions: keys, which may have `*`, and their values.

    rows      by packing the conditions under which a file has it, the first that holds; `full`: rows are full, and
              attention spans them, as they are priced where lengths are not known
    balanced  with which rows of a step are dealt to ranks by their tokens
    """

    rows: Mapping[PackedAs, Mapping[str, str]] = field(default_factory=dict)
    balanced: Mapping[str, str] = field(default_factory=dict)

    @property
    def read(self) -> frozenset[str]:
        """Every key that is named."""
        return frozenset(key for where in (*self.rows.values(), self.balanced) for key in where) - {"*"}

    def met(self, given: Settings) -> frozenset[str]:
        """Keys whose values in a file say how rows are filled."""
        return frozenset(k for where in self.rows.values() for k, words in where.items() if holds(given, {k: words}))


def packing_in(given: Settings, keys: PackingKeys) -> dict[str, Any]:
    """`packing` and `balanced_packing` of a workload as a file says them; empty where its rows are full."""
    packing = next((packing for packing, where in keys.rows.items() if holds(given, where)), "full")
    if packing == "full":
        return {}
    return {"packing": packing} | ({"balanced_packing": True} if holds(given, keys.balanced) else {})


DIFFERS: Mapping[Packing, str] = {
    "cut": "steps are shorter",
    "whole": "steps are shorter, fewer tokens count",
    "token_budget": "steps are shorter, fewer tokens count",
    "unpadded": "steps are shorter, memory is less",
    "pad_to_longest": "steps are shorter, memory is less",
    "pad_to_window": "fewer tokens count",
}
"""How a run of documents of different lengths differs from one of full rows, by packing."""
LENGTHS = "workload.document_length"


def full_rows(workload: Mapping[str, Any]) -> tuple[str, ...]:
    """What is assumed of the lengths of documents that a file packs and does not give, and how to give them."""
    if "packing" not in workload:
        return ()
    how = f"packing {workload['packing']}: {DIFFERS[workload['packing']]}"
    return (f"{LENGTHS} = 0; {how}; --set {LENGTHS}=lengths.txt",)


def with_lengths(workload: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """The values of a workload without packing where no lengths to pack are `given`; balance needs several."""
    lengths = given.get(LENGTHS, "0")
    is_number = lengths.replace(".", "", 1).isdecimal()
    if is_number and not float(lengths):
        return {key: value for key, value in workload.items() if key not in ("packing", "balanced_packing")}
    if is_number or given.get("workload.packing", workload.get("packing")) not in BALANCED:
        return {key: value for key, value in workload.items() if key != "balanced_packing"}
    return dict(workload)
