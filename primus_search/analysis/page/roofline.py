"""Roofline of a candidate: FLOP per byte against the projected FLOP/s of the matrix products of its layers."""

from typing import Any

import numpy as np

from primus_search.analysis.coverage import number_of
from primus_search.base.units import BF16_BYTES
from primus_search.cost.laws.expert_products import expert_precision, expert_products_s, turned
from primus_search.cost.laws.gemm import GemmPass, gemm_s, operand_bytes
from primus_search.cost.parts.layer import layer_operations
from primus_search.cost.parts.operations import GroupedLinear, LinearOp
from primus_search.values.candidates import Candidates
from primus_search.values.job import Job

FP8_BYTES = 1.0  # per element of an operand at least; FP4 has fewer


def roofline(job: Job, one: Candidates) -> dict[str, Any]:
    """`products`, each shape once, with layers' seconds of one micro-batch, and the roofs of the device.

    intensity in FLOP per byte of operands and result, rate in FLOP/s of the kernel alone, casts left out
    """
    acc = job.accelerator
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for kind in job.model.kinds:
        for operation in layer_operations(job, kind, one):
            if isinstance(operation, LinearOp | GroupedLinear):
                for which in GemmPass if operation.is_trained else (GemmPass.FORWARD, GemmPass.INPUT_GRAD):
                    product = _product(job, operation, which)
                    known = found.setdefault((product["family"], product["what"]), product | {"s": 0.0})
                    known["s"] += job.model.layers.count(kind) * product["s"]
    products = [one for one in found.values() if one["s"]]
    formats = {one["format"] for one in products}
    peaks = {"BF16": acc.bf16_peak_flops_per_s, "FP8": acc.fp8_peak_flops_per_s, "FP4": acc.fp4_peak_flops_per_s}
    roofs = {name: peak for name, peak in peaks.items() if name in formats and peak}
    return {"products": products, "roofs": roofs, "bytes_per_s": acc.hbm_bytes_per_s}


def _product(job: Job, operation: LinearOp | GroupedLinear, which: GemmPass) -> dict[str, Any]:
    """One pass of a linear layer: its family, shape in words, number format, FLOP per byte, FLOP/s and seconds."""
    acc, code, groups = job.accelerator, np.asarray(int(number_of(operation.precision))), 1.0
    n, k = (number_of(size) for size in (operation.n, operation.k))
    rows = number_of(operation.m if isinstance(operation, LinearOp) else operation.rows)
    shape = turned(np.asarray(rows), np.asarray(n), np.asarray(k), which)
    if isinstance(operation, LinearOp):
        seconds = float(gemm_s(acc, *shape, code, which))
    else:
        groups, mode = number_of(operation.groups), int(number_of(operation.mode))
        seconds = float(expert_products_s(acc, rows, groups, n, k, code, mode, which))
        code = expert_precision(code, mode)
    a, b, depth = (number_of(size) for size in shape)
    width, flops = float(operand_bytes(code)), 2.0 * groups * a * b * depth
    moved = groups * ((a * depth + depth * b) * width + a * b * BF16_BYTES)
    times = f"{groups:g} x " if groups > 1.0 else ""
    return {
        "family": operation.module.name.lower().replace("_", " "),
        "what": f"{which.name.lower().replace('_', ' ')} {times}{a:,.0f} x {b:,.0f} x {depth:,.0f}, {width:.3g} B",
        "format": "BF16" if width >= BF16_BYTES else "FP8" if width >= FP8_BYTES else "FP4",
        "intensity": flops / moved if moved else 0.0,
        "rate": flops / seconds if seconds else 0.0,
        "s": seconds,
    }
