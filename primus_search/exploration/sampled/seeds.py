"""Where a sampler starts: the order in which an engineer would try things.

Parallelism first, then schedule, DeepEP, sync-free stages, precision, memory levers, batch. Each seed changes one
group against the best guess of the group before, for every depth of pipeline.
"""

from collections.abc import Iterator
from typing import Any

from primus_search.space import Space
from primus_search.values.knobs import KNOB, KNOBS

TRIED = tuple(knob.name for knob in sorted(KNOBS, key=lambda knob: knob.tried) if knob.tried)


def seeds(space: Space) -> Iterator[dict[str, int]]:
    """Wanted positions on the axes, best guess first."""
    base = {axis.name: _position(axis.values, KNOB[axis.name].guess) for axis in space.axes}
    base["ep"] = len(space.axis("ep").values) - 1
    for pp in range(len(space.axis("pp").values)):
        yield base | {"pp": pp}
        for name in TRIED:
            for position in range(len(space.axis(name).values)):
                if position != base[name]:
                    yield base | {"pp": pp, name: position}


def _position(values: tuple[Any, ...], wanted: Any) -> int:
    return values.index(wanted) if wanted in values else 0
