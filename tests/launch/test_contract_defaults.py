"""Defaults of a contract against the tables that a tool makes from the framework's own parser."""

import pytest

from primus_search.files.argument_tables import arguments
from primus_search.files.framework_files import load_framework
from primus_search.launch.contract import same, schedule_of
from primus_search.launch.decided import decided_numbers
from primus_search.values.candidates import Candidates

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


@pytest.mark.parametrize("given", [{}, {"use_precision_aware_optimizer": True}])
@pytest.mark.parametrize(
    ("name", "table"),
    [("megatron", "megatron@core_0.20"), ("primus", "primus"), ("megatron@core_0.16", "megatron@core_0.16")],
)
def test_numbers_of_a_file_are_those_of_the_same_file_with_the_defaults(
    name: str, table: str, given: dict[str, bool]
) -> None:
    framework, row = load_framework(name), Candidates.from_words({"sharding": "distributed_optimizer"}).row(0)
    keys = {key for one in framework.decides for way in (one.settings, *one.reads, one.formats) for key in way}
    whole = {key: known.default for key, known in arguments(table).items() if key in keys}
    assert len(whole) >= 15
    short, long = (decided_numbers(framework, row, one | given) for one in ({}, whole))
    assert short == long


@pytest.mark.parametrize(
    ("algorithm", "stages", "schedule"),
    [({}, 1, "1f1b"), ({}, 3, "interleaved"), ({"pp_algorithm": "1f1b"}, 1, "1f1b"),
     ({"pp_algorithm": "1f1b"}, 2, None), ({"pp_algorithm": "zbv-formatted"}, 2, "zbv"),
     ({"pp_algorithm": "zero-bubble"}, 1, "zb-h1")],
)  # fmt: skip
def test_primus_own_runner_has_the_orders_of_its_algorithms(
    algorithm: dict[str, str], stages: int, schedule: str | None
) -> None:
    """primus/configs/modules/megatron/primus_pipeline.yaml: 1f1b-interleaved where a file names none."""
    assert schedule_of(load_framework("primus"), {"patch_primus_pipeline": True, **algorithm}, stages) == schedule
