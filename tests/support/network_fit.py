"""Fits a network's latencies, ramp and efficiencies to measured collectives, and says how well left-out points agree.

    fitted = fit_network(network, points, names)
    errors = left_out_errors(network, points, names)

Only named, bounded fields of `Network` are fitted, in the logarithm of the time, with a loss that a few outliers do not
bend; a field the points do not move is refused. Figures, with date and source, are then put into `hardware/*.yaml`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from primus_search.cost.laws import collectives
from primus_search.cost.laws.collectives import Group, dispatch_s
from primus_search.cost.traffic.expert_parallel import distinct_destinations
from primus_search.values.candidates import Floats
from primus_search.values.machine.network import Network
from tools.fit.write_ranges import BENCHMARK_EXPERTS, BENCHMARK_TOP_K, Points

RINGS: dict[str, Callable[[Network, Floats, Group], Floats]] = {
    "allreduce": collectives.all_reduce_s,
    "allgather": collectives.all_gather_s,
    "reducescatter": collectives.reduce_scatter_s,
    "alltoall": collectives.all_to_all_s,
}
# Fields that points can tell, with their bounds.
BOUNDS = {
    "link_latency_s": (1e-6, 1e-4),
    "link_hop_latency_s": (1e-7, 2e-5),
    "link_half_speed_bytes": (1e4, 1e9),
    "nic_half_speed_bytes": (1e4, 1e9),
    "ring_efficiency": (0.1, 1.0),
    "pair_loss": (0.01, 1.0),
    "in_network_efficiency": (0.1, 1.0),
    "all_to_all_efficiency": (0.1, 1.0),
    "dispatch_efficiency": (0.1, 1.0),
    "nic_dispatch_efficiency": (0.1, 1.0),
}
# Relative residual from which a point counts less, and the least share of the residual a field has to explain.
OUTLIER, LEAST_SENSITIVITY = 0.1, 1e-3


def predict_s(network: Network, points: Points) -> Floats:
    """Seconds the cost model gives every point."""
    seconds = np.zeros(len(points.op))
    group = Group(points.members, np.ones_like(points.members))
    for name, collective in RINGS.items():
        rows = points.op == name
        if rows.any():
            seconds[rows] = collective(network, points.message_bytes, group)[rows]
    rows = (points.op == "dispatch") | (points.op == "combine")
    if rows.any():
        seconds[rows] = dispatch_s(
            network,
            points.message_bytes,
            group,
            destinations=lambda parts: distinct_destinations(BENCHMARK_EXPERTS, BENCHMARK_TOP_K, parts),
        )[rows]
    return np.maximum(seconds, points.launch_s)


def fit_network(network: Network, points: Points, names: Sequence[str]) -> Network:
    """The network with the named fields fitted to the points; the others stay.

    Raises ValueError naming the fields that the points cannot tell: their time does not depend on them.
    """
    free = [name for name in names if network.__getattribute__(name) > 0.0]
    lower, upper = (np.log([BOUNDS[name][side] for name in free]) for side in (0, 1))
    start = np.clip(np.log([network.__getattribute__(name) for name in free]), lower + 1e-6, upper - 1e-6)
    target = np.log(points.seconds)

    def residuals(x: Floats) -> Floats:
        return np.log(predict_s(_with(network, free, x), points)) - target

    found = least_squares(residuals, start, bounds=(lower, upper), loss="soft_l1", f_scale=OUTLIER)
    idle = [n for n, column in zip(free, np.abs(found.jac).max(axis=0), strict=True) if column < LEAST_SENSITIVITY]
    if idle:
        raise ValueError(f"these points cannot tell {', '.join(idle)}; leave it out of the fit")
    return _with(network, free, found.x)


def _with(network: Network, names: Sequence[str], logs: Floats) -> Network:
    changes: dict[str, Any] = {name: float(value) for name, value in zip(names, np.exp(logs), strict=True)}
    return replace(network, **changes)


def relative_errors(network: Network, points: Points) -> Floats:
    """Signed error of every point: predicted over measured, less one."""
    return predict_s(network, points) / points.seconds - 1.0


def left_out_errors(network: Network, points: Points, names: Sequence[str], *, folds: int = 5) -> Floats:
    """Signed error of every point by a fit that did not see it: every `folds`-th point is left out in turn."""
    errors = np.zeros(len(points.op))
    fold = np.arange(len(points.op)) % folds
    for k in range(folds):
        fitted = fit_network(network, points[fold != k], names)
        errors[fold == k] = relative_errors(fitted, points[fold == k])
    return errors
