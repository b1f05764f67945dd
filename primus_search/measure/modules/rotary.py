"""Tables of rotary position embeddings."""

import torch
from torch import Tensor, nn

ROPE_BASE = 10000.0


class Rope(nn.Module):
    """Cosine and sine tables [seq, dim/2], constants shared by all layers of a model."""

    def __init__(self, seq: int, dim: int) -> None:
        super().__init__()
        frequency = ROPE_BASE ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
        angle = torch.outer(torch.arange(seq, dtype=torch.float32), frequency)
        self.register_buffer("cosine", angle.cos(), persistent=False)
        self.register_buffer("sine", angle.sin(), persistent=False)

    cosine: Tensor
    sine: Tensor
