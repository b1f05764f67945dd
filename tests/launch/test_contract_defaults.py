"""Defaults of a contract against the tables that a tool makes from the framework's own parser."""

import pytest

from primus_search.files.framework_files import load_framework
from primus_search.launch.contract import same
from primus_search.launch.refusals import arguments

RESOLVED = {"recompute_modules"}
"""What a framework fills in after its parser: TransformerConfig.__post_init__."""
OF_PRESETS = {"moe_token_dispatcher_type"}
"""What the model presets of Primus set over the parser's default (configs/models/megatron/*_base.yaml)."""

LATER = {"data_parallel_sharding_strategy"}
"""Defaults of core 0.20 that the contract keeps for 0.16: without `--use-megatron-fsdp` they decide nothing."""


@pytest.mark.parametrize(
    ("name", "table", "otherwise"),
    [
        ("megatron", "megatron@core_0.20", RESOLVED),
        ("primus", "primus", RESOLVED | OF_PRESETS),
        ("megatron@core_0.16", "megatron@core_0.16", RESOLVED | LATER),
        ("torchtitan@0.2.2", "torchtitan@0.2.2", set()),
        ("torchtitan", "torchtitan@0.3.0", {"loss"}),  # a class: Trainer.Config has none until a job names it
    ],
)
def test_defaults_are_those_of_the_parser(name: str, table: str, otherwise: set[str]) -> None:
    """Of keys that the parser has: parts of a model's description (`model_spec.X`) are none of its arguments."""
    known = arguments(table)
    shared = {key: value for key, value in load_framework(name).defaults.items() if key in known}
    assert len(shared) >= 10
    assert {key for key, value in shared.items() if not same(known[key].default, value)} == otherwise
