"""Fitted numbers back into a hardware file with where they come from.

The file is edited as text, one leaf per line, so that everything else in it stays byte for byte: comments, the
network's section, numbers that were not fitted. A leaf is `key: {value: 0.75, source: "..."}`.
"""

import re
from dataclasses import dataclass

from primus_search.base.errors import InputError, Problem
from primus_search.files.source import parse
from primus_search.measure.calibrate.kernel_fit import Calibration, Fitted, StageResult

_LEAF = re.compile(r'^ *(?P<key>\w+): \{value: (?P<value>[^,]+), source: "(?P<source>[^"]*)"\}\s*$')
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
    lines = text.splitlines()
    places = ((keys, number - 1, _LEAF.match(lines[number - 1])) for keys, number in parse(text, "").lines.items())
    return [
        FittedLeaf(path=".".join(map(str, keys)), value=leaf["value"], source=leaf["source"], line=number)
        for keys, number, leaf in places
        if leaf and keys and keys[-1] == leaf["key"]
    ]


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
                head, source = lines[leaf.line].partition("{")[0], describe(fitted, stage, date)
                lines[leaf.line] = f'{head}{{value: {fitted.value:.4g}, source: "{source}"}}'
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
