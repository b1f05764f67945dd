"""A candidate in one short line, the way engineers write it: `TP2 PP4x2 EP8 mbs1 zbv deepep sf3 fp8 full(4)`."""

from collections.abc import Mapping
from typing import Any

from primus_search.cost.memory import fit_verdict
from primus_search.cost.uncertainty import Confidence

# Knobs left out of the line at their usual value, in the order they are written.
_USUAL: Mapping[str, Any] = {"ep": 1, "etp": 1, "cp": 1}


def short(row: Mapping[str, Any]) -> str:
    """The knobs that distinguish a candidate; what is at its usual value is left out."""
    pipeline = f"PP{row['pp']}" + (f"x{row['vpp']}" if row["vpp"] > 1 else "")
    words = [f"TP{row['tp']}", pipeline, f"DP{row['dp']}"] if "dp" in row else [f"TP{row['tp']}", pipeline]
    words += [f"{name.upper()}{row[name]}" for name, usual in _USUAL.items() if row[name] != usual]
    words.append(f"mbs{row['micro_batch_size']}")
    if row["pp"] > 1:
        words.append(row["schedule"])
    if row["pipeline_layout"] != "even":
        words.append(f"layout:{row['pipeline_layout']}")
    words += ["deepep"] if row["deepep"] else []
    words += [f"sf{row['sync_free_stage']}"] if row["sync_free_stage"] else []
    words += [f"fp8:{row['fp8']}"] if row["fp8"] != "none" else []
    words += [_recompute(row)] if row["recompute"] != "none" else []
    words += [row["sharding"].replace("distributed_optimizer", "zero1")] if row["sharding"] != "none" else []
    words += ["legacy-gemm"] if row["grouped_gemm"] == "legacy" else []
    words += [] if row["loss_fusion"] else ["unfused-loss"]
    words += [] if row["overlap_grad_reduce"] else ["no-grad-overlap"]
    words += [f"offload{row['offload_layers']}"] if row["offload_layers"] else []
    return " ".join(words)


def _recompute(row: Mapping[str, Any]) -> str:
    if row["recompute"] != "full":
        return f"recompute:{row['recompute']}"
    return f"full({row['recompute_num_layers']})" if row["recompute_num_layers"] else "full"


def counted(number: int, noun: str) -> str:
    """`1 node`, `1,024 nodes`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


ROUNDING = 1e-9
"""A share of the whole below this is a rounding error: a makespan less its work where there is no bubble."""
CERTAIN = 0.995
"""From here on a probability is written >99%, and below its complement <1%: nobody knows the tail of a memory error."""
THOUSANDS_FROM = 1e4


def chance(probability: float) -> str:
    """A probability as a whole percentage; never 0 or 100 %."""
    if probability >= CERTAIN:
        return ">99%"
    return "<1%" if probability < 1.0 - CERTAIN else f"{probability:.0%}"


def fits(row: Mapping[str, Any]) -> str:
    """Whether a row runs in device memory, and how surely: `FITS, probability >99%`, `AT RISK, probability 83%`."""
    return f"{fit_verdict(row['fit_probability'], row['headroom_bytes'])}, probability {chance(row['fit_probability'])}"


def rests(sure: Confidence) -> str:
    """What the first row's interval rests on: runs of its stack, family, architecture and precision."""
    runs = round(float(sure.runs[:1].sum()))
    return f"{counted(runs, 'run')} of its kind left out of the fit" if runs else "no run of its kind, so it is wider"


def between(low: float, high: float) -> str:
    """Two ends of an interval of tokens/s/GPU, at most ten characters: `812-934`, `9.8-11.3k`, `98-105k`."""
    if high < THOUSANDS_FROM:
        return f"{low:.0f}-{high:.0f}"
    digits = 1 if high < 10.0 * THOUSANDS_FROM else 0
    return f"{low / 1e3:.{digits}f}-{high / 1e3:.{digits}f}k"
