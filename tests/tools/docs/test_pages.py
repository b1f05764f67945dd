"""Generated pages of docs/ are current, and their examples are read."""

from functools import cache

import pytest

from primus_search.declare import make_space
from primus_search.files.source import parse
from primus_search.space.types import AXES
from primus_search.values.knobs import KNOB
from tools.docs.__main__ import PAGES
from tools.docs.space_reference import example, page

reference = cache(page)
COSTLY = "memory"
"""Of tables that are validated; by `tests/oracle` each of them is, too."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.in_turn] if name == COSTLY else []) for name in PAGES]
)
def test_a_generated_page_is_current(name: str) -> None:
    path, made = PAGES[name]
    assert path.read_text(encoding="utf-8") == made(), f"run: python -m tools.docs {name}"


@pytest.mark.parametrize("name", AXES)
def test_the_example_of_each_axis_is_read(name: str) -> None:
    job = {"seq_length": 8192, "global_batch_size": 128}
    values = parse(f"{name}: {example(KNOB[name])}", "example.yaml").data
    space = make_space({"model": "llama3_8b", "hardware": "mi300x", "workload": job, "space": values}, environ={})
    assert len(space.axis(name).values) >= 2 and f"| `{name}` | `{example(KNOB[name])}` |" in reference()
