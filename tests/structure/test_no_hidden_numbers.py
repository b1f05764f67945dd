"""No efficiency hides in a formula: what is no YAML value and not counted off an algorithm has a name and a reason."""

import ast
from pathlib import Path

from tests.support.parsed import parsed

COST = Path(__file__).parents[2] / "primus_search" / "cost"
HALF = 0.5
"""Means and triangles."""
NAMED = {
    "BACKWARD_FLOPS": "five products of attention's backward over two of its forward",
    "UNFUSED_PASSES": "passes over memory of an optimizer written as separate operations",
    "ENOUGH": "what coverage calls covered",
    "ROOM": "bound by which Megatron's layer-wise optimizer deals matrices to replicas",
    "FULL_ENOUGH": "bound from which it closes a bucket",
    "FIT_THRESHOLD": "what the verdict calls a fit",
    "TIE": "noise between identical runs",
    "RUN_NOISE": "half of it",
    "(MODEL_ERROR, MOE_FACTOR)": "error of one configuration and how much larger it is with experts",
    "UNKNOWN": "error band of a regime without runs",
    "UNKNOWN_MEMORY": "error band of peaks of software without runs",
    "WHOLE_LOGITS": "probability of a loss on whole logits in software that no stack file describes",
    "DEVIATIONS_TO_END": "quantile of the normal distribution",
}
NEGLIGIBLE = 1e-8
"""Slacks of comparisons between floats."""


def fractions(tree: ast.AST) -> set[float]:
    """Numbers below a node that are neither whole nor a half nor a rounding slack."""
    found = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, float)}
    return {v for v in found if not v.is_integer() and v != HALF and v > NEGLIGIBLE}


def test_fractions_stand_in_named_constants_only() -> None:
    hidden: dict[str, set[float]] = {}
    for path in sorted(COST.rglob("*.py")):
        for node in parsed(path).body:
            is_named = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in NAMED
            if not is_named and fractions(node):
                hidden[f"{path.name}:{node.lineno}"] = fractions(node)
    assert hidden == {}
