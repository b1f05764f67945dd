"""Exhaustive or sampled: exhaustive while the legal space fits the budget, else a sampler that suits its size."""

from primus_search.exploration.exhaustive.evaluate import Funnel

EXHAUSTIVE_LIMIT = 2_000_000_000
"""Legal rows a search without a budget still walks through; about half an hour on two cores."""


def choose_method(funnel: Funnel) -> tuple[str, str]:
    """The method of this search and, in words, why."""
    settings = funnel.space.search
    legal = sum(enumerator.size for enumerator in funnel.enumerators)
    limit = settings.budget_candidates or EXHAUSTIVE_LIMIT
    if settings.method == "exhaustive":
        return "exhaustive", "asked for"
    if settings.method != "auto":
        return settings.method, "asked for"
    if legal <= limit:
        return "exhaustive", f"{legal:,} legal candidates fit the budget of {limit:,}"
    return "tpe", f"{legal:,} legal candidates exceed the budget of {limit:,}; TPE handles words, switches and limits"
