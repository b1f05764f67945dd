"""Every argument of a release has a verdict: read, not priced, or without effect."""

from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from primus_search.files.framework_files import load_framework
from primus_search.launch.contract import acts
from primus_search.launch.read.recipes import model_of, recipes
from tests.support.judge.checkouts import needs, sources
from tools.setting_verdicts import settings_below, settings_of, verdict, verdicts

RELEASES = {
    "megatron": "megatron@core_0.20", "megatron@core_0.16": "megatron@core_0.16", "primus": "primus", "nemo": "nemo",
    "torchtitan": "torchtitan@0.3.0", "torchtitan@0.2.2": "torchtitan@0.2.2",
}  # fmt: skip
"""The table of arguments of each contract (`tests/tools/test_argument_tables.py`: they are those of the sources)."""
DIRECTIONS = ("slower", "faster", "more memory", "less memory", "less or more memory")
ROOT = Path(__file__).parents[2]
KEYS = ROOT / "spaces" / "keys"


@pytest.mark.parametrize("name", RELEASES)
def test_what_a_contract_ignores_has_no_row_of_effects(name: str) -> None:
    framework = load_framework(name)
    assert sorted(framework.effects.keys() & framework.ignored) == []


@pytest.mark.parametrize("name", RELEASES)
def test_every_argument_of_a_release_has_a_verdict(name: str) -> None:
    found = verdicts(name, settings_of(name, RELEASES[name]))
    assert [key for key, kind in found.items() if not kind] == []


def test_every_setting_of_a_recipe_that_is_read_has_a_verdict() -> None:
    """Those of models and data sets of its own among them, which no class of the table has."""
    framework = load_framework("nemo")
    found = {key for one in recipes().values() if model_of(one) is not None for key in one.settings}
    assert len(found) >= 200
    assert sorted(key for key in found if not verdict(framework, key)) == []


@needs("primus")
def test_every_key_of_primus_own_files_has_a_verdict() -> None:
    """Those of other models among them, whose defaults are in no table."""
    framework, found = load_framework("primus"), set[str]()
    for folder in ("modules", "models"):
        for path in (sources("primus") / "primus/configs" / folder / "megatron").rglob("*.yaml"):
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
            found |= set(map(str, data)) if isinstance(data, dict) else set()
    assert len(found) >= 700
    assert sorted(key for key in found if not verdict(framework, key)) == []


def test_classes_of_megatron_core_as_pip_installs_it_are_found() -> None:
    """What `make newest` reads of releases that have no table; the installed one has verdicts."""
    core = find_spec("megatron.core") if find_spec("megatron") else None
    if core is None or not core.submodule_search_locations:
        pytest.skip("megatron-core is not installed")
    found = verdicts("nemo", settings_below("nemo", Path(next(iter(core.submodule_search_locations))).parents[1]))
    assert len(found) >= 250
    assert [key for key, kind in found.items() if not kind] == []


@pytest.mark.parametrize("name", ["megatron", "torchtitan"])
def test_each_key_has_one_verdict_with_a_direction_or_a_reason(name: str) -> None:
    table = yaml.safe_load((KEYS / f"{name}.yaml").read_text())
    listed = [key for group in (*table["not_priced"], *table["irrelevant"]) for key in group["keys"]]
    assert sorted(listed) == sorted(set(listed))
    assert all(group["effect"].startswith(DIRECTIONS) for group in table["not_priced"])
    assert all(group["reason"] for group in table["irrelevant"])
    assert set(table["priced"]) <= {key for group in table["not_priced"] for key in group["keys"]}
    switches = [set(map(str, one)) for one in table["priced"].values() if isinstance(one, list)]
    assert not any({"True", "False"} <= one for one in switches)  # one of which is named


@pytest.mark.parametrize(("name", "key", "given", "row", "is_acting"), [
    ("nemo", "main_grads_dtype", {"use_precision_aware_optimizer": True}, {}, False),
    ("megatron", "main_grads_dtype", {"use_precision_aware_optimizer": True}, {}, True),
    ("primus", "fp8_recipe", {}, {"fp8": "none"}, False),
    ("primus", "fp8_recipe", {"use_precision_aware_optimizer": True}, {"fp8": "none"}, True),
    ("primus", "is_hybrid_model", {"model_type": "mamba"}, {}, False),
    ("primus", "mamba_num_heads", {"model_type": "mamba", "spec": ["m", "gdn_hybrid_stack_spec"]}, {}, False),
    ("primus", "mamba_num_heads", {"model_type": "mamba", "spec": ["m", "hybrid_stack_spec"]}, {}, True),
    ("primus", "multi_latent_attention", {"model_type": "mamba", "hybrid_attention_ratio": 0.0}, {}, False),
    ("primus", "multi_latent_attention", {"model_type": "mamba", "hybrid_attention_ratio": 0.25}, {}, True),
    ("primus", "virtual_pipeline_model_parallel_size", {"num_virtual_stages_per_pipeline_rank": 4}, {"pp": 4}, False),
    ("nemo", "tp_comm_overlap", {}, {"tp": 2, "sequence_parallel": False}, False),
    ("nemo", "vocab_extra_ids", {"vocab_size": 1000}, {}, False),
    ("nemo", "window_size", {"compress_ratios": [0, 4]}, {}, False),
    ("nemo", "window_size", {}, {}, True),
    ("megatron", "attention_backend", {"transformer_impl": "local"}, {}, False),
    ("megatron", "attention_backend", {"transformer_impl": "transformer_engine"}, {}, True),
    ("torchtitan@0.2.2", "activation_checkpoint.early_stop", {}, {"recompute": "none"}, False),
])  # fmt: skip
def test_settings_act_beside_those_that_they_need(
    name: str, key: str, given: dict[str, Any], row: dict[str, Any], is_acting: bool
) -> None:
    assert acts(load_framework(name).of_dense, row, given, key) is is_acting


@pytest.mark.parametrize("name", RELEASES)
def test_the_page_has_the_counts_of_a_release(name: str) -> None:
    kinds = Counter(verdicts(name, settings_of(name, RELEASES[name])).values())
    page = " ".join((ROOT / "docs" / "dev" / "adding.md").read_text().split())
    assert f"{name} {kinds['read']}/{kinds['not priced']}/{kinds['cannot matter']}" in page
