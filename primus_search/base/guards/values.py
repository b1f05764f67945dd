"""Physically possible ranges of the numbers of hardware and stack files, by field name; numbers as JSON has them, and
as other programs print them.

Files and overrides (`--set hardware.nic_GBps=...`, hardware axes) pass the same check, in base units.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

LARGEST = 1e30
"""Above every rate, size and time of any machine, in base units."""
LARGEST_WHOLE = 2**31 - 1
"""Counts of devices, units and links; their products stay within 64 bits."""

_POSITIVE = ("_per_s", "_efficiency", "_factor", "_rate")
_POSITIVE_NAMES = frozenset({
    "hbm_bytes", "num_compute_units", "gpus_per_node", "domain_size", "nics_per_node", "pod_size", "loss_chunks",
    "element_bytes", "weight_bytes", "score_bytes", "gradient_bytes", "gradient_comm_bytes", "moment_bytes",
    "gradient_bucket_params", "sustained_over_burst", "training_rate", "factor", "device_share",
    "expert_padding_factor", "peak_flops_per_s",
})  # fmt: skip
_ABSENT_AT_ZERO = frozenset({
    "checkpoint_bytes_per_s",
    "fp4_peak_flops_per_s", "fp8_peak_flops_per_s", "nic_port_bytes_per_s", "fp8_backward_factor",
    "mx_backward_factor",
    "fp8_block_efficiency", "fp8_row_efficiency", "fp8_tensor_efficiency", "mxfp8_efficiency", "nvfp4_efficiency",
    "host_copy_bytes_per_s", "host_update_bytes_per_s", "gather_efficiency", "library_cast_efficiency",
    "in_network_efficiency", "cutlass_factor", "dense_training_rate",
})  # fmt: skip
"""Quantities whose zero says that the device or network does not have the feature."""
_SHARES = ("_overlap", "_share")


def range_problem(name: str, value: float) -> str:
    """What is wrong with the value of a field, or the empty string. Overlaps and shares lie in 0..1 unless fitted."""
    if not math.isfinite(value):
        return "must be a finite number"
    if abs(value) > LARGEST or (isinstance(value, int) and value > LARGEST_WHOLE and not name.endswith("_bytes")):
        return "is larger than any machine's"
    is_positive = name in _POSITIVE_NAMES or (name.endswith(_POSITIVE) and name not in _ABSENT_AT_ZERO)
    if is_positive and value <= 0:
        return "must be above 0"
    if value < 0:
        return "must be at least 0"
    if name.endswith(_SHARES) and value > 1 and name not in ("expert_gemm_share", "expert_fp8_gemm_share"):
        return "is a share and must be at most 1"
    return ""


def finite(value: Any) -> Any:
    """The same data with None in place of numbers that are not finite; tuples become lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(inner) for key, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, list | tuple) else value


_COUNT = re.compile(r"(?=\d(?:_?\d){0,17}\Z)[\d_]+")
"""A count that 64 bits hold, `9_765_625` as Python has it, too.

`str.isdigit` takes superscripts, and `int` raises for more than some thousand digits."""


def whole_number(text: str) -> int | None:
    """The count that a text stands for; None where it is none, or one that no run has."""
    return int(text) if _COUNT.fullmatch(text) else None


def finite_number(value: Any) -> float | None:
    """A number, or a text that is one; None for anything else, and for what is beyond every rate, size and time."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number == 0.0 or 1.0 / LARGEST <= abs(number) <= LARGEST else None


MAX_NAME = 200


def name_problem(text: str) -> str:
    """What is wrong with a name, or the empty string: it is empty, too long, or has control characters or surrogates.

    Printable text of any language passes, quotes and shell signs included: each writer quotes them in its own format.
    """
    if not text.strip():
        return "is an empty name"
    if len(text) > MAX_NAME:
        return f"is a name of {len(text):,} characters; at most {MAX_NAME} are allowed"
    if not text.isprintable():
        sign = next(sign for sign in text if not sign.isprintable())
        return f"is a name with a character that cannot be printed ({sign!r}); remove it"
    return ""


FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r", "'")
"""Source: OWASP, "CSV Injection". The quote itself is doubled, so that reading gives back what was written."""


def guarded(text: str) -> str:
    """A word as the text of a cell that no spreadsheet evaluates."""
    return f"'{text}" if text.startswith(FORMULA_SIGNS) else text


def unguarded(cell: str) -> str:
    """The word that `guarded` wrote."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(FORMULA_SIGNS) else cell
