"""Encoders of other inputs beside a language model: vision and audio towers with their projectors."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from primus_search.values.workload import Workload

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """A patch embedding, an encoder with attention inside an image, and a projector into the language model's size.

    params        its parameters, projector included; 0: the family's tower is not counted and cannot be projected
    patch_inputs  numbers that one patch is embedded from     merge  patches of one token of the language model
    projector     weight matrices (n, k), each applied once per token
    image_patches patches of an image of the configuration's size; 0: images of any size
    is_trained    false: frozen, forward alone and no gradients; its projector likewise
    """

    name: str
    params: int
    num_layers: int = 0
    hidden: int = 0
    ffn_hidden: int = 0
    num_heads: int = 0
    head_dim: int = 0
    is_gated: bool = False
    patch_inputs: int = 0
    merge: int = 1
    projector: tuple[tuple[int, int], ...] = ()
    image_patches: int = 0
    is_trained: bool = True

    @property
    def is_counted(self) -> bool:
        """Whether its sizes are known, so that it can be projected."""
        return self.params > 0 and self.num_layers > 0

    def patches(self, workload: "Workload") -> float:
        """Patches of one image: as the workload says, else of the configured size, else of all image tokens."""
        given = workload.tokens_per_image * self.merge or self.image_patches
        return float(given or workload.image_tokens * self.merge)

    def ranks(self, tp: Ints) -> Ints:
        """Ranks that split the encoder's heads: tp where it divides them, else 1."""
        return np.where(np.mod(self.num_heads, tp) == 0, tp, 1)

    def flops_per_token(self, patches: float) -> float:
        """Forward FLOPs per image token, two per parameter of a matrix and patch, attention over a whole image.

        Formula: m [2 P H + L (8 H A d + 2 k H F + 4 A d N)] + 2 sum(n k); m patches a token, N of an image,
        k 3 for a gated MLP and 2 else.
        """
        inner = self.num_heads * self.head_dim
        layer = 8.0 * self.hidden * inner + 2.0 * (3 if self.is_gated else 2) * self.hidden * self.ffn_hidden
        per_patch = 2.0 * self.patch_inputs * self.hidden + self.num_layers * (layer + 4.0 * inner * patches)
        return self.merge * per_patch + 2.0 * sum(n * k for n, k in self.projector)
