"""How a recommendation meets the goal of the training, and what other clusters of the search would give, in words."""

from collections.abc import Sequence

from primus_search.analysis.labels import chance
from primus_search.exploration.result import ClusterResult, SearchResult, is_on
from primus_search.exploration.scaling_table import dividing_batches, machine_of, reached
from primus_search.space import Goal

MILLION, THOUSAND = 1e6, 1e3
MOST_OTHERS = 2
OTHERWISE = 0.98
"""An other cluster is named where it takes at most this share of the days or of the cost."""


def goal_words(result: SearchResult) -> tuple[str, ...]:
    """Days with their 90 % interval, cost, energy and the chance of the date; what is assumed; () without tokens."""
    goal = result.space.goal
    if not goal.tokens:
        return ()
    rung = result.rung_of(result.best.choice)
    spent = ", ".join(filter(None, (money(rung.cost_USD), energy(rung.energy_MWh))))
    found = [
        f"{amount(goal.tokens)} tokens: {rung.days:,.1f} days ({rung.days_at(rung.high):,.0f}-"
        f"{rung.days_at(rung.low):,.0f}){spent and f', {spent}'}"
    ]
    if goal.is_limited:
        found[0] += f"; {_limits(goal)} with {chance(rung.chance)}"
        if reached(rung, goal) < goal.chance / 100.0:
            found.append(f"No cluster of this search meets {_limits(goal)} with {goal.chance:g}%: A is the likeliest.")
    return tuple(found)


def _limits(goal: Goal) -> str:
    parts = [f"{goal.within_days:,.4g} days"] if goal.within_days else []
    return " and ".join(parts + ([money(goal.budget_USD)] if goal.budget_USD else []))


def assumptions(result: SearchResult) -> list[str]:
    """What days, cost and energy of a scaling table rest on that nobody measured; where nothing runs, or a batch does
    not divide and which would."""
    rungs, found = result.rungs, []
    unknown = list(dict.fromkeys(rung.device for rung in rungs if rung.mtbf_is_assumed))
    if unknown and result.space.goal.tokens:
        found.append(f"? no failure rate of {', '.join(unknown)} is published: that of H100 is assumed.")
    dips = [rung for rung in rungs if rung.dividing_batches]
    found += [f"{rung.world:,} {rung.device} lose by {_batch_words(rung.dividing_batches)}." for rung in dips]
    for one in result.clusters:
        if not len(one.ranking):
            cluster, batches = one.choice.cluster, _batches_to_run(result, one)
            why = f": {_batch_words(batches)}" if batches else ""
            what = "nothing fits" if one.legal else "nothing is legal"
            found.append(f"{cluster.world:,} {cluster.accelerator.name}: {what}{why}.")
    return found


def _batch_words(batches: Sequence[int]) -> str:
    return f"a global batch that does not divide; {' or '.join(f'{one:,}' for one in batches)} would"


def _batches_to_run(result: SearchResult, one: ClusterResult) -> tuple[int, ...]:
    """Batches with which a cluster where nothing is legal could run the layout of the next larger one."""
    larger = [peer for peer in result.clusters if len(peer.ranking) and machine_of(peer) == machine_of(one)]
    larger = [peer for peer in larger if peer.choice.cluster.world > one.choice.cluster.world]
    nearest = min(larger, key=lambda peer: peer.choice.cluster.world, default=None)
    return dividing_batches(one.choice, nearest, result.space) if nearest is not None and not one.legal else ()


def other_clusters(result: SearchResult) -> dict[int, str]:
    """When to take the first rows of other clusters, by their places in `ranked_rows`: the earliest, the cheapest."""
    goal, mine = result.space.goal, result.rung_of(result.best.choice)
    if not goal.tokens or len(result.rungs) < 2:
        return {}
    rows, found = result.ranked_rows, dict[int, str]()
    for key, when in (("days", "sooner"), ("cost_USD", "cheaper"), ("gpu_hours", "fewer GPU hours")):
        best = min(result.rungs, key=lambda rung: getattr(rung, key))
        is_better = getattr(best, key) < OTHERWISE * getattr(mine, key)
        choice = next(one.choice for one in result.clusters if len(one.ranking) and result.rung_of(one.choice) is best)
        place = next((p for p, row in enumerate(rows) if is_on(row, choice)), None) if is_better else None
        if place is None or place in found or len(found) == MOST_OTHERS:
            continue
        date = f", {chance(best.chance)} in time" if goal.within_days else ""
        found[place] = f"{when}: {best.days:,.0f} days{(best.cost_USD and f', {money(best.cost_USD)}') or ''}{date}"
    return found


def amount(tokens: float) -> str:
    """`15 T`, `300 B`."""
    return f"{tokens / 1e12:,.4g} T" if tokens >= 1e12 else f"{tokens / 1e9:,.4g} B"


def money(dollars: float) -> str:
    """`25.4 M USD`; empty for none."""
    if not dollars:
        return ""
    return f"{dollars / MILLION:,.3g} M USD" if dollars >= MILLION else f"{dollars / THOUSAND:,.3g} k USD"


def energy(megawatt_hours: float) -> str:
    """`18,400 MWh`; empty for none."""
    return f"{megawatt_hours:,.{0 if megawatt_hours >= 100 else 1}f} MWh" if megawatt_hours else ""
