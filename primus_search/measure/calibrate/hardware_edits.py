"""Fitted numbers back into a hardware file with where they come from.

The file is edited as text, one leaf per line, so that everything else in it stays byte for byte: comments, the
network's section, numbers that were not fitted. A leaf is `key: {value: 0.75, source: "..."}`.
"""

import re
from dataclasses import dataclass

from primus_search.base.errors import InputError, Problem
from primus_search.measure.calibrate.kernel_fit import Calibration, Fitted, StageResult

_LEAF = re.compile(r'^(?P<indent> *)(?P<key>\w+): \{value: (?P<value>[^,]+), source: "(?P<source>[^"]*)"\}\s*$')
_SECTION = re.compile(r"^(?P<indent> *)(?P<key>\w+):\s*$")
SECTION = "accelerator"
_MAX_SOURCES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedLeaf:
    """One number of a hardware file as text: its dotted path below the top, its value and its source."""

    path: str
    value: str
    source: str
    line: int

    @property
    def key(self) -> str:
        """The last word of the path."""
        return self.path.rpartition(".")[2]


def leaves(text: str) -> list[FittedLeaf]:
    """Every sourced number of a hardware file, in file order."""
    found: list[FittedLeaf] = []
    stack: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines()):
        section, leaf = _SECTION.match(line), _LEAF.match(line)
        match = section or leaf
        if match is None:
            continue
        indent = len(match["indent"])
        stack = [(depth, key) for depth, key in stack if depth < indent]
        path = ".".join([key for _, key in stack] + [match["key"]])
        if section:
            stack.append((indent, match["key"]))
        elif leaf:
            found.append(FittedLeaf(path=path, value=leaf["value"], source=leaf["source"], line=number))
    return found


def with_tables(text: str, name: str) -> str:
    """The hardware file with its `tables:` key naming that CSV beside it, before its first section."""
    line = f"tables: {name}"
    if re.search(r"^tables:.*$", text, flags=re.MULTILINE):
        return re.sub(r"^tables:.*$", line, text, count=1, flags=re.MULTILINE)
    return re.sub(rf"^{SECTION}:", f"{line}\n\n{SECTION}:", text, count=1, flags=re.MULTILINE)


def with_fitted(text: str, calibration: Calibration, date: str, where: str = "hardware file") -> str:
    """The hardware file with every fitted number replaced and its provenance as source.

    Raises InputError when the file does not hold a fitted number on a line of its own.
    """
    lines = text.splitlines()
    at = {leaf.path: leaf for leaf in leaves(text)}
    problems = []
    for stage in calibration.stages:
        for fitted in stage.fitted:
            for path in (fitted.path, *fitted.also):
                leaf = at.get(f"{SECTION}.{path}")
                if leaf is None:
                    problems.append(Problem(f"{where} @ $.{SECTION}.{path}", "expected a line `key: {value, source}`"))
                    continue
                old = _LEAF.match(lines[leaf.line])
                assert old is not None
                source = describe(fitted, stage, date)
                lines[leaf.line] = f'{old["indent"]}{old["key"]}: {{value: {fitted.value:.4g}, source: "{source}"}}'
    if problems:
        raise InputError(problems)
    return "\n".join(lines) + "\n"


def describe(fitted: Fitted, stage: StageResult, date: str) -> str:
    """The source of a fitted number: date, points, bounds, error of points left out, where the points come from."""
    named = ", ".join(fitted.sources[:_MAX_SOURCES])
    if len(fitted.sources) > _MAX_SOURCES:
        named += f" and {len(fitted.sources) - _MAX_SOURCES} more"
    tied = f", one number with {', '.join(fitted.also)}" if fitted.also else ""
    return (
        f"fitted {date} to {fitted.num_points} {stage.name} points of {named} (bounds {fitted.low:g} to "
        f"{fitted.high:g}, standard error {fitted.standard_error:.1%}, median error of points left out "
        f"{stage.median_error:.1%}{tied})"
    )
