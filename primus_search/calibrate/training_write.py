"""Put numbers fitted to training runs into stack and hardware files, each with its provenance, and touch nothing else.

Files are edited as text so that comments and everybody else's lines stay as they are. A number that the runs do not
identify is written with its prior and says so.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from primus_search.calibrate.training import Fit, Parameter
from primus_search.calibrate.training_parameters import IDENTIFIED, MAX_FITTED
from primus_search.candidates import Floats
from primus_search.validate.cases import Case
from primus_search.validate.score import duplicate_weights, quantile

_UNITS = {
    "host_launch_s": ("host_launch_us", 1e6),
    "host_moe_s": ("host_moe_ms", 1e3),
    "host_sync_s": ("host_sync_us", 1e6),
    "step_s": ("step_ms", 1e3),
    "pass_s": ("pass_us", 1e6),
    "broadcast_s": ("broadcast_ms", 1e3),
}
POOLED = 8
"""Runs a regime of a stack needs for an error band of its own; with fewer it takes that of all stacks together."""

BAND = (0.05, 0.95)


def identified(parameters: Sequence[Parameter], fit: Fit) -> set[str]:
    """Paths of what the runs identify, at most `MAX_FITTED` per owner, the best known first."""
    by_owner: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    for p in parameters:
        ratio = fit.standard_errors[p.path] / p.sigma
        if ratio < IDENTIFIED:
            by_owner[(p.owner, p.name)].append((ratio, p.path))
    return {path for found in by_owner.values() for _, path in sorted(found)[:MAX_FITTED]}


def write_parameters(parameters: Sequence[Parameter], fit: Fit, cases: Sequence[Case], folder: Path, date: str) -> None:
    """Write every parameter into `folder`: stacks/NAME.yaml at top level, training rates under accelerator."""
    known = identified(parameters, fit)
    files = {path: _name(path) for path in sorted(folder.glob("*.yaml"))}
    for p in parameters:
        key, factor = _UNITS.get(p.field, (p.field, 1.0))
        value = float(f"{(fit.values[p.path] if p.path in known else p.prior) * factor:.4g}")
        runs = sum(p.touches(case) for case in cases)
        source = f"prior: {runs} training runs do not identify it"
        if p.path in known:
            source = f"fitted {date} to {runs} training runs, standard error {fit.standard_errors[p.path]:.2g}"
        line = f'{key}: {{value: {value}, source: "{source}"}}'
        if p.owner == "stack":
            path = folder / "stacks" / f"{p.name}.yaml"
            path.write_text(_with_line(path.read_text(), key, line, ""))
        else:
            path = next(path for path, name in files.items() if name == p.name)
            path.write_text(_with_line(path.read_text(), key, "  " + line, "  "))


def _name(path: Path) -> str:
    found = re.search(r"^name: *(.+?) *$", path.read_text(), re.M)
    return found.group(1).strip("\"'") if found else ""


def _with_line(text: str, key: str, line: str, indent: str) -> str:
    """The text with the line of a key replaced; a new one goes behind `attention_kernel` or `sustained_over_burst`."""
    present = re.compile(rf"^{indent}{key}: .*$", re.M)
    if present.search(text):
        return present.sub(lambda _: line, text, count=1)
    anchor = re.search(rf"^{indent}(?:attention_kernel|sustained_over_burst): .*$", text, re.M)
    if anchor is None:
        raise ValueError(f"no line to put {key} behind")
    return text[: anchor.end()] + "\n" + line + text[anchor.end() :]


def error_bands(cases: Sequence[Case], left_out: Floats) -> dict[str, dict[str, tuple[float, float, int]]]:
    """Per stack and regime: 5th and 95th percentile of measured / projected on left-out runs, and their number."""
    ratio = np.exp(-left_out)
    weights = duplicate_weights(case.duplicate_key for case in cases)
    regimes = np.array([regime(case) for case in cases])
    stacks = np.array([case.cluster.stack.name for case in cases])
    found: dict[str, dict[str, tuple[float, float, int]]] = {}
    for name in dict.fromkeys(stacks.tolist()):
        found[name] = {}
        for kind in ("dense", "moe"):
            rows = (stacks == name) & (regimes == kind)
            if weights[rows].sum() < POOLED:
                rows = regimes == kind
            low, high = (quantile(ratio[rows], weights[rows], share) for share in BAND)
            found[name][kind] = (min(low, 1.0), max(high, 1.0), int(rows.sum()))
    return found


def regime(case: Case) -> str:
    """What a run's error is compared with: other dense or other MoE runs."""
    return "moe" if case.model.is_moe else "dense"


def write_bands(bands: Mapping[str, Mapping[str, tuple[float, float, int]]], folder: Path, date: str) -> None:
    """Write the `errors:` section of every stack file, in place of an older one."""
    for name, regimes in bands.items():
        path = folder / "stacks" / f"{name}.yaml"
        text = re.sub(r"^errors:\n(?:  .*\n)*", "", path.read_text(), flags=re.M).rstrip("\n") + "\n"
        lines = ["errors:"]
        for kind, (low, high, runs) in regimes.items():
            source = f"left-out runs, source and model at a time, {date}"
            lines.append(f"  {kind}:")
            for key, value in (("low", round(low, 3)), ("high", round(high, 3)), ("runs", runs)):
                lines.append(f'    {key}: {{value: {value}, source: "{source}"}}')
        path.write_text(text + "\n".join(lines) + "\n")
