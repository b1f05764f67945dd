"""One number of a device or of its network raised: every row gets slower, or none does, and none needs more memory."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from primus_search.cost.project import Projector
from primus_search.space import Enumerator
from primus_search.values.candidates import Bools, Candidates, Recompute, Sharding
from tests.property.test_search_proof import SPACES, drawn

ROWS = 40
FACTOR = 1.37
CAPACITIES = ("hbm_bytes", "context_bytes", "communicator_bytes")
EXCEPTION = 0.01
ANOTHER_LAYER = 0.0002  # 0.008 % seen in one of 120 spaces
"""Share of the step by which rows may move the other way where `counts_to_another_pass`."""


def numbers(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """Every float of nested dataclasses, capacities apart."""
    for f in fields(value):
        one = value.__getattribute__(f.name)
        if is_dataclass(one):
            yield from numbers(one, (*path, f.name))
        elif isinstance(one, float) and f.name not in CAPACITIES:
            yield (*path, f.name), one


def put(value: Any, path: tuple[str, ...], number: float) -> Any:
    """The same value with one number replaced."""
    name, *rest = path
    inner = put(value.__getattribute__(name), tuple(rest), number) if rest else number
    return replace(value, **{name: inner})


def counts_to_another_pass(enumerator: Enumerator, c: Candidates) -> Bools:
    """Rows whose schedule runs weight gradients apart while weights are gathered around each layer.

    A gather hides behind both gradients together, and what shows of it counts to the input gradient. A slower weight
    gradient therefore makes the input gradient, which the next stage waits for, shorter by as much.
    """
    splits = np.array([algorithm.splits_weight for algorithm in enumerator.job.algorithms])
    mask: Bools = splits[c.schedule] & (c.pp > 1) & (c.sharding >= Sharding.FSDP2)
    return mask


def hides_behind_another_layer(c: Candidates) -> Bools:
    """Rows of gathered weights of which some layers recompute: a gather hides behind another layer than its own."""
    mask: Bools = (c.recompute == Recompute.FULL) & (c.recompute_num_layers > 0) & (c.sharding >= Sharding.FSDP2)
    return mask


@pytest.mark.daily(1)
@pytest.mark.parametrize("seed", range(100, 100 + max(SPACES // 3, 6)))
def test_a_number_moves_every_row_the_same_way_and_no_memory(seed: int) -> None:
    enumerator = Enumerator(drawn(seed))
    some = np.random.default_rng(seed).choice(enumerator.size, min(enumerator.size, ROWS), replace=False)
    c, job = enumerator.rows(np.sort(some)), enumerator.job
    usual = Projector(job)
    step, memory = usual.step(c).total, usual.memory(c).total
    allowed = np.where(hides_behind_another_layer(c), ANOTHER_LAYER, 1e-9)
    allowed = np.where(counts_to_another_pass(enumerator, c), EXCEPTION, allowed)
    for where in ("accelerator", "network"):
        for path, number in numbers(job.cluster.__getattribute__(where)):
            try:
                cluster = replace(
                    job.cluster, **{where: put(job.cluster.__getattribute__(where), path, number * FACTOR)}
                )
            except ValueError:
                continue  # a share of more than one
            changed = Projector(replace(job, cluster=cluster))
            slower = changed.step(c).total / step - 1.0
            least, most = allowed * [[-1.0], [1.0]]
            assert np.all(slower <= most) or np.all(slower >= least), (where, path, slower.min(), slower.max())
            assert np.array_equal(changed.memory(c).total, memory), (where, path)
