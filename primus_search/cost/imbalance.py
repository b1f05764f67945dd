"""What a step waits for the slowest: documents of different lengths make micro-batches of different work.

Ranks that gather sharded weights or exchange experts' tokens wait for each other in every micro-batch, others once, at
the end of the step. The ranks of a pipeline, of tensor and of context parallelism work on the same rows.

    wait = E[max over ranks of (sum_j w_j + r max_j w_j)] / ((m + r) E[w]) - 1

    w_j  work of micro-batch j, tokens + k * squares of lengths: the most of the ranks that wait in every micro-batch
    k    FLOPs of attention per pair of tokens over those of the rest per token, from the model
         Rows that the scheduler of hybrid context parallelism deals, or `balanced_packing`, are balanced.
    r    (pp - 1) / vpp: micro-batches that a pipeline takes to fill and to drain
The expectation is over steps drawn from the rows as they occur (`values.lengths.rows_of`), always the same steps.
"""

from functools import lru_cache

import numpy as np

from primus_search.space.memo import distinct
from primus_search.values.candidates import Candidates, Floats
from primus_search.values.job import Job
from primus_search.values.lengths import rows_of
from primus_search.values.workload import Workload

DRAWN = 1 << 17
"""Rows drawn for an expectation, of as many steps as they make."""
FEWEST_STEPS, MOST_STEPS = 8, 256


def waited_share(job: Job, c: Candidates) -> Floats:
    """(rows) seconds waited over the seconds of a step in which all micro-batches are alike; 0 where they are."""
    if not job.workload.has_uneven_rows:
        return np.zeros(len(c))
    d, weight = job.degrees(c), attention_weight(job)
    exchanging = np.gcd(np.maximum(c.ep * c.etp // (c.tp * c.cp), 1), d.dp)
    together = np.where(job.gathers_weights(c), d.dp, exchanging)
    is_balanced = c.hybrid_cp | job.workload.balanced_packing
    sizes = [d.dp, d.microbatches, c.micro_batch_size, together, c.pp - 1, c.vpp, is_balanced]
    number, first = distinct(sizes)
    of_each = np.stack(sizes, axis=1)[first].tolist()
    return np.array([expected_wait(job.workload, weight, *one) for one in of_each])[number]


def attention_weight(job: Job) -> float:
    """FLOPs of attention per token and token of its document, over those of the rest per token."""
    window = job.workload.seq_length
    least = job.model.flops_per_token(1)
    return (job.model.flops_per_token(window) - least) / (least * window)


@lru_cache(maxsize=4096)
def expected_wait(
    workload: Workload,
    weight: float,
    dp: int,
    microbatches: int,
    samples: int,
    together: int,
    fill: int,
    chunks: int,
    is_balanced: bool,
) -> float:
    """The wait of dp ranks with so many micro-batches of so many samples each, over a step without."""
    work = row_work(workload, weight)
    drawn = dp * microbatches * samples
    steps = int(np.clip(DRAWN // drawn, FEWEST_STEPS, MOST_STEPS))
    rows = work[np.random.default_rng(0).integers(0, len(work), (steps, drawn))]
    if is_balanced:
        rows = dealt(rows, dp)
    of_samples = rows.reshape(steps, microbatches, samples, dp)
    is_padded = workload.packing == "pad_to_longest"
    of_ranks = samples * of_samples.max(axis=2) if is_padded else of_samples.sum(axis=2)
    longest = of_ranks.reshape(steps, microbatches, dp // together, together).max(axis=3)
    ends = longest.sum(axis=1) + fill / chunks * longest.max(axis=1)
    alike = (microbatches + fill / chunks) * of_ranks.mean()
    return float(ends.max(axis=1).mean() / alike - 1.0)


def row_work(workload: Workload, weight: float) -> Floats:
    """Work of rows as they occur, in tokens of no attention."""
    assert workload.documents is not None
    rows = rows_of(workload.documents, workload.packing, workload.seq_length)
    is_full = workload.packing in ("cut", "whole")
    return (float(workload.seq_length) if is_full else rows.tokens) + weight * rows.squares


def dealt(rows: Floats, dp: int) -> Floats:
    """Rows of every step in the order in which they are dealt to ranks, longest first and back and forth: balanced."""
    falling = -np.sort(-rows, axis=1)
    turns = falling.reshape(len(rows), -1, dp)
    turns[:, 1::2] = turns[:, 1::2, ::-1]
    return turns.reshape(rows.shape)
