"""Constants of a model: numbers and words of its file that are no sizes."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Constants of a model; None or empty where its file does not say.

    norm_epsilon      added under the root of every norm
    rotary_base       base of the rotary frequencies
    rotary_share      share of a head that is rotated
    rotary_scaling    how the frequencies are stretched (`type`, `factor`, ... as config.json names them); empty: not
    activation        of the MLP: silu, gelu, gelu_tanh, relu2
    router_score      softmax or sigmoid of the router's products
    router_normalises whether the scores of the chosen experts are divided by their sum
    router_scale      factor of the chosen scores
    attention_dropout, hidden_dropout  shares that the file drops; projections and launch files have none
    others            further keys of the file that change results, with their values
    """

    norm_epsilon: float | None = None
    rotary_base: float | None = None
    rotary_share: float = 1.0
    rotary_scaling: tuple[tuple[str, Any], ...] = ()
    activation: str = ""
    router_score: str = ""
    router_normalises: bool | None = None
    router_scale: float | None = None
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    others: tuple[tuple[str, Any], ...] = ()

    @property
    def scaling(self) -> dict[str, Any]:
        """`rotary_scaling` as a mapping."""
        return dict(self.rotary_scaling)
