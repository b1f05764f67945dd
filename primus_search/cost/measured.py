"""Seconds measured on a device, in place of the kernel laws, for the layers of a few candidates.

One physics for every rung of evidence: what was measured replaces the compute of a piece (a layer of each kind, the
embedding, the head), everything else - collectives, pipeline, gradient traffic - is the same code. Measured seconds
contain no communication. A piece that was not measured keeps its law.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from primus_search.cost.parts.operations import Pass, Work
from primus_search.values.candidates import COLUMN_NAMES, Candidates, Floats
from primus_search.values.knobs import Enters, reading

KEY_COLUMNS = tuple(name for name in COLUMN_NAMES if name in reading(Enters.KERNELS | Enters.REPEATS))
"""Columns that change what one device computes in a layer."""

Key = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceSeconds:
    """One piece of the model for one micro-batch on one device, compute only; `recompute` is its extra backward time.

    None where nothing was measured.
    """

    forward: float
    input_grad: float
    weight_grad: float
    recompute: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLayers:
    """Measured pieces by candidate key: (layer kinds, embedding, head) in the order of `stage.pieces`.

    optimizer_s_per_param  seconds to update one parameter, 0 where not measured
    """

    pieces: Mapping[Key, tuple[PieceSeconds | None, ...]] = field(default_factory=dict)
    optimizer_s_per_param: float = 0.0

    def of(self, c: Candidates, row: int, piece: int) -> PieceSeconds | None:
        """What was measured of one piece of one row."""
        found = self.pieces.get(key_of(c, row))
        return found[piece] if found is not None and piece < len(found) else None


def key_of(c: Candidates, row: int) -> Key:
    """What a measurement of a layer depends on, of one row."""
    columns = c.columns()
    return tuple(int(columns[name][row]) for name in KEY_COLUMNS)


def keys_of(c: Candidates) -> list[Key]:
    """`key_of` of every row."""
    columns = c.columns()
    return [tuple(key) for key in np.stack([columns[name].astype(np.int64) for name in KEY_COLUMNS], axis=1).tolist()]


def put_measured(work: Work, measured: MeasuredLayers, piece: int, c: Candidates) -> None:
    """Scale the compute of a piece, part by part, so that each pass adds up to what was measured; traffic comes later.

    Launches are inside the measurement, so none are counted again.
    """
    for row in range(len(c)) if measured.pieces else ():
        seconds = measured.of(c, row, piece)
        if seconds is None:
            continue
        targets = {
            Pass.FORWARD: seconds.forward,
            Pass.INPUT_GRAD: seconds.input_grad,
            Pass.WEIGHT_GRAD: seconds.weight_grad,
        }
        for which, target in targets.items():
            modelled = float(work.seconds[which, :, row].sum())
            if modelled == 0.0:  # the laws book this work under another pass: the piece's main part takes it
                work.seconds[which, int(work.seconds[:, :, row].sum(axis=0).argmax()), row] = target
                continue
            scale = target / modelled
            work.seconds[which, :, row] *= scale
            if which is Pass.FORWARD:
                work.forward_module_s[:, row] *= scale
            elif which is Pass.INPUT_GRAD:
                work.core_backward_s[row] *= scale
        work.kernels[:, row] = 0.0


def put_recompute(seconds: Floats, measured: MeasuredLayers, piece: int, c: Candidates) -> Floats:
    """Recompute seconds per row of one layer kind, measured where they were."""
    if not measured.pieces:
        return seconds
    found = [measured.of(c, row, piece) for row in range(len(c))]
    given = [np.nan if one is None or one.recompute is None else one.recompute for one in found]
    return np.where(np.isnan(given), seconds, np.nan_to_num(given))
