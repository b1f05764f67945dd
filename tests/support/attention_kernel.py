"""Operations that torch's counter knows the FLOPs of, and the attention of traced modules as one of them.

`count_attention` replaces `forward_kernel` and `backward_kernel` of the attention modules by operations of the same
outputs, whose causal FLOPs are exact, where torch's own counter takes the full square.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from primus_search.measure.modules import attention_modules


def without_kernel(schema: str, *, fake: Callable[..., Any], flops: Callable[..., int]) -> Any:
    """Define the operation `primus_search::schema`, which only traces run: what it returns there, and its FLOPs.

    `flops` takes the shapes of the tensors among its arguments.
    """
    name = schema.partition("(")[0]
    torch.library.define(f"primus_search::{name}", schema.removeprefix(name))
    torch.library.register_fake(f"primus_search::{name}", fake)
    operation = getattr(torch.ops.primus_search, name)
    register_flop_formula(operation)(flops)
    return operation


def _attention_flops(q: list[int], k: list[int], v: list[int], reads: float, **_: Any) -> int:
    batch, heads, seq, qk_dim = q
    return round(2.0 * batch * heads * seq * reads * (qk_dim + v[-1]))


@lru_cache(maxsize=1)
def count_attention() -> None:
    """Once: traced attention is an operation whose FLOPs are counted; twice the forward's in backward, four products of
    the algorithm. The fifth, which flash kernels redo, is no model FLOP."""
    attention_modules.forward_kernel = without_kernel(
        "attention(Tensor q, Tensor k, Tensor v, float reads) -> (Tensor, Tensor)",
        fake=attention_modules.forward_kernel,
        flops=_attention_flops,
    )
    attention_modules.backward_kernel = without_kernel(
        "attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, float reads) -> (Tensor, Tensor, Tensor)",
        fake=attention_modules.backward_kernel,
        flops=lambda grad, *forward, **_: 2 * _attention_flops(*forward),
    )
