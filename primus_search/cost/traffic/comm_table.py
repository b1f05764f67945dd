"""One row of the communication table: what is sent, how often, how long it takes, and how much compute hides.

Every communication term returns its traffic in this form, so that a total, its exposed part and the table of
`primus-search explain` come from the same columns.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from primus_search.cost.parts.operations import Pass
from primus_search.values.candidates import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Comm:
    """Traffic of one kind, per candidate.

    operation      what it is, for the table
    message_bytes  of one collective, as `cost.laws.collectives` counts it
    count          collectives per layer and micro-batch, or per step, as the term says
    seconds        of all of them
    exposed_s      what lengthens the critical path, compute slowed down beside the traffic included
    """

    operation: str
    message_bytes: Floats
    count: Floats
    seconds: Floats
    exposed_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTraffic:
    """Traffic of one layer and micro-batch, forward and backward."""

    forward: Comm
    backward: Comm

    @property
    def passes(self) -> tuple[tuple[Pass, Comm], tuple[Pass, Comm]]:
        """Both with the pass that waits for them."""
        return (Pass.FORWARD, self.forward), (Pass.INPUT_GRAD, self.backward)


def exposed_s(comm_s: ArrayLike, compute_s: ArrayLike, *, overlap: ArrayLike) -> Floats:
    """Seconds of traffic left over after compute has hidden some; slower compute beside it is not modelled.

    Formula: hidden = overlap * min(comm, compute);  exposed = comm - hidden
        overlap  share of the smaller of the two that really runs side by side
    A second of compute hides at most one second of traffic, so callers with two kinds of traffic pass the second one
    the compute that is left.
    """
    comm = np.asarray(comm_s, dtype=np.float64)
    hidden = np.asarray(overlap, dtype=np.float64) * np.minimum(comm, compute_s)
    return comm - hidden


def comm(
    operation: str, message_bytes: ArrayLike, count: ArrayLike, seconds: Floats, exposed: Floats | None = None
) -> Comm:
    """A row of the table with every column broadcast to the shape of `seconds`; fully exposed by default."""
    shape = np.shape(seconds)
    return Comm(
        operation=operation,
        message_bytes=np.broadcast_to(np.asarray(message_bytes, dtype=np.float64), shape),
        count=np.broadcast_to(np.asarray(count, dtype=np.float64), shape),
        seconds=seconds,
        exposed_s=seconds if exposed is None else exposed,
    )
