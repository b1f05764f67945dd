"""Whatever a space, model or hardware file holds, reading it gives a value or an `InputError`, never anything else."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from primus_search.base.errors import InputError
from primus_search.declare import make_space
from primus_search.declare.axes import AXIS
from primus_search.declare.space_schema import SpaceFile
from primus_search.files.hardware_files import known_names, load_hardware
from primus_search.models.huggingface import FAMILIES
from primus_search.models.megatron_yaml import readable_keys
from primus_search.models.model_files import load_model
from primus_search.models.presets import PRESET_KEYS
from primus_search.space import Space

WORDS = st.sampled_from(
    ["auto", "divisors", "none", "full", "hybrid", "Et*2|t*30L", "1f1b", "", "tp", "llama3_8b", "h100"]
)
SCALARS = st.none() | st.booleans() | st.integers(-3, 10**6) | st.floats(allow_nan=True) | WORDS | st.text(max_size=6)
KEYS = st.sampled_from(
    ["full", "method", "first", "last", "hsdp", "seq_length", "global_batch_size", "value", "source", "x"]
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
GOOD: dict[str, Any] = {
    "model": "llama3_8b",
    "hardware": "h100",
    "workload": {"seq_length": 4096, "global_batch_size": 128},
}


@settings(max_examples=60, deadline=None)
@given(
    top=st.dictionaries(st.sampled_from([*SpaceFile.model_fields, "x"]), VALUES, max_size=2),
    axes=st.dictionaries(st.sampled_from([*AXIS, "hardware.nic_GBps", "stack.cuda_graph", "x"]), VALUES, max_size=3),
)
@example(top={"stack": []}, axes={})
def test_any_space_is_a_space_or_an_input_error(top: dict[str, Any], axes: dict[str, Any]) -> None:
    if top.get("hardware") == "host":
        return
    try:
        space = make_space({**GOOD, "space": axes, **top}, environ={})
    except InputError as error:
        assert error.problems
        return
    assert isinstance(space, Space)


READERS = ["preset", "megatron", *FAMILIES]
SIZE_KEYS = [
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size",
    "head_dim", "layer_types", "sliding_window", "num_experts", "num_local_experts", "attn_config", "d_model",
    "n_heads", "n_layers", "n_embd", "n_head", "n_layer", "mlp_only_layers", "text_config", "ffn_config",
]  # fmt: skip


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), reader=st.sampled_from(READERS))
def test_any_model_file_is_a_model_or_an_input_error(data: st.DataObject, reader: str, tmp_path: Path) -> None:
    keys = {"preset": PRESET_KEYS, "megatron": readable_keys()}.get(reader, SIZE_KEYS)
    content = data.draw(st.dictionaries(st.sampled_from(keys), SCALARS | VALUES, max_size=12))
    content |= {"preset": {}, "megatron": {"hidden_size": 512}}.get(reader, {"model_type": reader})
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content))
    try:
        model = load_model(str(path))
    except InputError as error:
        assert error.problems
        return
    assert model.total_params > 0


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=st.dictionaries(st.sampled_from(known_names()), VALUES, max_size=5))
def test_any_primus_hardware_file_is_hardware_or_an_input_error(config: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "mi300x.yml"
    path.write_text(json.dumps({"hardware_config": config}))
    try:
        hardware = load_hardware(str(path))
    except InputError as error:
        assert error.problems
        return
    assert hardware.network.link_bytes_per_s > 0


@pytest.mark.parametrize(
    "flag", ["=", "a=", "=3", "tp==3", "search.budget.seconds.x=3", "workload=3", "space=[1]", "tp={", "hardware.=3"]
)
def test_any_flag_is_applied_or_an_input_error(flag: str) -> None:
    try:
        make_space(GOOD, overrides=[flag], environ={})
    except InputError as error:
        assert str(error.problems[0]).startswith("--set ")
