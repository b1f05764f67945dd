"""Configurations that frameworks print as YAML or as `name=value`: a few known names are taken, wherever they stand."""

import re
from collections.abc import Iterable

from primus_search.learn.transcript import Transcript

_COMMENT = re.compile(r"\s+#.*$")


def configuration_pattern(names: Iterable[str]) -> re.Pattern[str]:
    """A pattern for `name: value` at the start of a line (after indentation and bars) and for `name=value`."""
    either = "|".join(sorted(names, key=len, reverse=True))
    return re.compile(rf"(?:^[\s|'\"-]*|\s|[(,.{{])[\"']?({either})[\"']?\s*(?::\s+|=)([^\s,)}}]+)")


def observe_configuration(seen: Transcript, line: str, pattern: re.Pattern[str]) -> None:
    """The known names of a line; a printed value that refers to another one (`${...}`) or is none teaches nothing."""
    for name, value in pattern.findall(_COMMENT.sub("", line)):
        text = value.strip("'\"")
        if text and not text.startswith("$"):
            seen.facts[name] = text
