"""The software stack: which kernels, fusions, overlaps and overheads a training framework brings to a device.

A stack is an input like the hardware: `hardware/stacks/*.yaml`, one file per framework generation, every value with
its source or the date of its fit. Shares lie in 0..1: 0 hides nothing, 1 hides all that there is time to hide behind.

    stack.efficiencies.gemm_efficiency                 one number
    with_numbers(stack, {"gemm_efficiency": 0.9})      a copy with some numbers replaced

One module per group; each field is documented where it stands.
"""

from primus_search.values.machine.stack.error_bands import ErrorBand, SiteErrors
from primus_search.values.machine.stack.record import GROUP_OF, GROUPS, Stack, number_of, with_numbers

__all__ = [
    "GROUPS",
    "GROUP_OF",
    "ErrorBand",
    "SiteErrors",
    "Stack",
    "number_of",
    "with_numbers",
]
