"""Parts that a token's experts lie in where routing first picks a few groups of experts (DeepSeek-V2, -V3).

Experts are dealt to groups and to parts in order, evenly. A token picks `top_groups` of `num_groups` groups, then its
`top_k` experts among those of the picked groups.
Source: NVIDIA/Megatron-LM megatron/core/transformer/moe/moe_utils.py group_limited_topk; DeepSeek-V3, arXiv 2412.19437
section 2.1.2: at most 4 nodes a token.
"""

from collections import Counter
from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np

from primus_search.values.candidates import Floats, Ints

MOST_PICKS = 20_000
"""Choices of groups that are counted one by one."""


def limited_destinations(
    num_experts: int, top_k: int, parts: Ints | Floats, *, num_groups: int, top_groups: int
) -> Floats:
    """Mean number of the `parts` equal shares of the experts that a token needs, groups and experts chosen evenly."""
    known, place = np.unique(np.asarray(parts, dtype=np.float64), return_inverse=True)
    means = [_mean(num_experts, top_k, max(round(float(one)), 1), num_groups, top_groups) for one in known]
    return np.asarray(means)[place].reshape(np.shape(parts))


@lru_cache(maxsize=4096)
def _mean(num_experts: int, top_k: int, parts: int, num_groups: int, top_groups: int) -> float:
    """Sum over parts of 1 - C(M - n, K) / C(M, K), mean over picks; M experts are picked from, n of them the part's."""
    shares = Counter(
        tuple(sorted(Counter(e * num_groups // num_experts for e in experts).items()))
        for experts in _parts(num_experts, parts)
    )
    picked = num_experts // num_groups * top_groups
    picks = list(combinations(range(num_groups), top_groups))
    mean = 0.0
    for share, count in shares.items():
        held = dict(share)
        missed = (comb(picked - sum(held.get(group, 0) for group in pick), top_k) for pick in picks)
        mean += count * (1.0 - sum(missed) / len(picks) / comb(picked, top_k))
    return mean


def _parts(num_experts: int, parts: int) -> list[range]:
    return [range(i * num_experts // parts, (i + 1) * num_experts // parts) for i in range(parts)]


def is_limited(num_experts: int, num_groups: int, top_groups: int) -> bool:
    """Whether groups limit routing, and their picks can be counted."""
    limits = 0 < top_groups < num_groups and num_experts % num_groups == 0
    return limits and comb(num_groups, top_groups) <= MOST_PICKS
