"""Defaults of a contract against the tables that a tool makes from the framework's own parser."""

import pytest

from primus_search.files.framework_files import load_framework
from primus_search.launch.contract import same
from primus_search.launch.refusals import arguments

RESOLVED = {"recompute_modules"}
"""What a framework fills in after its parser: TransformerConfig.__post_init__."""
OF_PRESETS = {"moe_token_dispatcher_type"}
"""What the model presets of Primus set over the parser's default (configs/models/megatron/*_base.yaml)."""


@pytest.mark.parametrize(
    ("name", "table", "otherwise"),
    [
        ("megatron", "megatron@core_0.20", RESOLVED),
        ("primus", "primus", RESOLVED | OF_PRESETS),
        ("torchtitan", "torchtitan@0.2.2", set()),
    ],
)
def test_defaults_are_those_of_the_parser(name: str, table: str, otherwise: set[str]) -> None:
    known = arguments(table)
    defaults = load_framework(name).defaults
    differ = {key for key, value in defaults.items() if not same(known[key].default, value)}
    assert differ == otherwise
