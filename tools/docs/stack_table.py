"""Tables of a stack's numbers and habits in docs/cost/stack.md: `python -m tools.docs` writes them."""

import inspect
import re
from pathlib import Path

import yaml

from primus_search.base import units
from primus_search.declare.search_path import FileKind, names
from primus_search.values.machine.stack import GROUPS

PAGE = Path(__file__).parents[2] / "docs" / "cost" / "stack.md"
START, END = "<!-- fields: python -m tools.docs stack -->\n", "<!-- end of fields -->\n"


def documented(cls: type) -> dict[str, str]:
    """The meaning of each field of a group, by its line in the docstring: `name  meaning`."""
    lines = re.findall(r"^(\w+)  (.+(?:\n .*)*)", inspect.getdoc(cls) or "", flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in lines}


def base_values(group: str) -> dict[str, tuple[str, str]]:
    """Key and value in bases/pytorch.yaml of every field of a group that it gives."""
    data = yaml.safe_load(names(FileKind.STACK_BASE)["pytorch"].read_text(encoding="utf-8"))
    values = {}
    for key, leaf in data[group].items():
        value = leaf["value"] if isinstance(leaf, dict) else leaf
        shown = f"{value:g}" if isinstance(value, float) else str(value).lower()
        values[key] = values[units.to_base(key, 0.0)[0]] = (key, shown)
    return values


def table(group: str) -> str:
    """The fields of a group as Markdown."""
    given = base_values(group)
    rows = [f"\n**{group}**\n", "| key | in `pytorch` | meaning |", "|---|---|---|"]
    for name, text in documented(GROUPS[group]).items():
        key, value = given.get(name, (name, "-"))
        rows.append(f"| {key} | {value} | {text.replace('|', '/')} |")
    return "\n".join(rows) + "\n"


def page() -> str:
    """The page with its tables made anew."""
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(START)
    return head + START + "".join(table(group) for group in GROUPS) + "\n" + END + rest.partition(END)[2]
