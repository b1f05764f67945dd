"""The contract of a mixer: the part of a layer that moves information between tokens.

A mixer declares its matrix products (`projections`), the parameters that are no matrices (`vectors`), what mixing works
on (`core`) and its FLOPs. Everything else follows from that: parameters, FLOPs, shares of a rank, inputs kept for
backward. A new mixer is one file with a frozen dataclass of this shape, a row in `values/model/__init__.py`, and a law
of its core in `cost/parts/mixer_operations.py` where that is neither attention nor a scan in chunks.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class Split(Enum):
    """How tensor parallelism divides a projection."""

    COLUMN = "column"
    """By output: each rank owns n / tp columns, and needs all tokens."""
    ROW = "row"
    """By input: each rank owns k / tp rows; the results are summed over ranks."""
    WHOLE = "whole"
    """Replicated; with sequence parallelism each rank works on its own tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightMatrix:
    """One weight matrix, (n, k): tokens x k in, tokens x n out.

    group     projections of one group read the same input in one product (fused QKV)
    limit     most ranks that divide it (key/value heads); beyond that it is replicated; 0 for no limit
    copies    independent blocks of that shape (a grouped output projection)
    """

    group: str
    n: int
    k: int
    split: Split
    limit: int = 0
    copies: int = 1

    @property
    def params(self) -> int:
        return self.copies * self.n * self.k


def column(group: str, n: int, k: int, limit: int = 0, copies: int = 1) -> WeightMatrix:
    """A projection that tensor parallelism divides by output."""
    return WeightMatrix(group=group, n=n, k=k, split=Split.COLUMN, limit=limit, copies=copies)


def row(group: str, n: int, k: int) -> WeightMatrix:
    """A projection that it divides by input."""
    return WeightMatrix(group=group, n=n, k=k, split=Split.ROW)


def whole(group: str, n: int, k: int) -> WeightMatrix:
    """A projection that every rank has."""
    return WeightMatrix(group=group, n=n, k=k, split=Split.WHOLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixingWork:
    """What mixing itself works on: elements per token, all ranks together, 0 of what a mixer does not have.

    convolved  of the depthwise convolution          turned   rotated or normalised      gated  normalised behind a gate
    scanned    read and written by a scan in chunks of `chunk` tokens;  state  numbers in the state of one sequence
    copied     copies that the kernel reads and keeps      before_gate  outputs kept before their norm or gate
    rows       FP32 numbers that the kernel keeps          passing      outputs of projections that nothing keeps
    up         groups of projections that turn latents into queries, keys and values, as MLA's up-projections do
    exchanged  tensors that context parallelism exchanges for heads, that of the output last; by none states are passed
    groups     of two more tensors, `group_width` each: every context-parallel rank gets one at least, a copy if need be
    gathered   numbers per token that every context-parallel rank needs of all tokens, to select from

    Sources of what is kept: Megatron-Core 0.20 ssm/mamba_mixer.py with mamba_ssm's MambaSplitConv1dScanCombinedFn
    (keeps the joint projection and the output before its gate), ssm/gated_delta_net (queries and keys normalised and
    repeated for every value head, gate copied), experimental_attention_variant (absorbed MLA, DSA);
    flash-linear-attention ops/kda/chunk.py (keeps two squares of each chunk) and ops/gated_delta_rule (one).
    """

    convolved: int = 0
    turned: int = 0
    gated: int = 0
    scanned: int = 0
    chunk: int = 1
    state: int = 0
    copied: int = 0
    before_gate: int = 0
    rows: float = 0.0
    passing: int = 0
    up: tuple[str, ...] = ()
    exchanged: tuple[int, ...] = ()
    groups: int = 0
    group_width: int = 0
    gathered: tuple[int, ...] = ()

    def exchanged_widths(self, ranks: NDArray[Any]) -> list[NDArray[np.float64]]:
        """Columns of each tensor exchanged for heads over that many ranks (tp * cp), all together; the output last."""
        shared = [np.maximum(self.groups, ranks) * float(self.group_width)] * (2 if self.groups else 0)
        return [*shared, *(np.full_like(ranks, width, dtype=np.float64) for width in self.exchanged)]


@runtime_checkable
class Mixer(Protocol):
    """What every mixer provides; by default it has and does nothing. hidden: the model's hidden size H."""

    @property
    def name(self) -> str:
        """The mixer's name in the field, for tables."""

    @property
    def num_heads(self) -> int:
        """Heads that tensor parallelism has to divide; 0 where nothing is divided by heads."""
        return 0

    def projections(self, hidden: int) -> tuple[WeightMatrix, ...]:
        """Its weight matrices."""
        return ()

    def vectors(self, hidden: int) -> tuple[int, int]:
        """Parameters that are no matrices (norms, biases, convolutions): divided by tp, and replicated."""
        return 0, 0

    def core(self, hidden: int) -> MixingWork:
        """What its streams, its scan and its kernel work on."""
        return MixingWork()

    def mixing_flops(self, seq_length: int) -> float:
        """FLOPs per token of forward beyond projections and vectors, causal."""
        return 0.0


def mixer_params(mixer: Mixer, hidden: int) -> int:
    """All parameters of one mixer."""
    return sum(p.params for p in mixer.projections(hidden)) + sum(mixer.vectors(hidden))


def attended_tokens(seq_length: int, window: int) -> float:
    """Mean number of keys one query reads under a causal mask, per token; a window cuts it short.

    Formula: mean over positions i of min(i, w): S/2 for full attention, w - w^2/(2S) for a window w < S.
    """
    if window == 0 or window >= seq_length:
        return seq_length / 2.0
    return window - window * window / (2.0 * seq_length)


@dataclass(frozen=True, slots=True)
class NoMixer(Mixer):
    """A layer that is a feed-forward alone (Nemotron-H)."""

    @property
    def name(self) -> str:
        return "none"
