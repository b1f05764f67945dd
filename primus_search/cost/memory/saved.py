"""One tensor that a layer keeps from forward to backward."""

from dataclasses import dataclass

from primus_search.values.candidates import Floats, Recompute


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Saved:
    """One tensor kept from forward to backward. `weight_input`: a weight gradient needs it."""

    name: str
    bytes: Floats
    dropped_by: Recompute = Recompute.NONE
    weight_input: bool = False
