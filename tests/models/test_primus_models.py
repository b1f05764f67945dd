"""Primus and Megatron model files: chains, environment, experiment files, patterns, and whole messages of bad ones."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from primus_search.base.errors import InputError
from primus_search.models.megatron_arguments import megatron_keys
from primus_search.models.model_files import load_model
from primus_search.models.presets import presets
from primus_search.values.model import LayerKind

UNIFORM = [name for name, preset in presets().items() if preset.model.is_uniform and preset.model.num_norms == 2]
"""Presets that Megatron's keys can say; the others declare a mixer for each layer."""

SIZES = """\
num_layers: 4
hidden_size: 512
num_attention_heads: 8
vocab_size: 1000
position_embedding_type: rope
"""
EXPERIMENT = """\
exp_name: ${EXP:test}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: ${MODEL:m}.yaml
    overrides:
      num_layers: ${LAYERS:6}
      train_iters: 50
      micro_batch_size: 1
      lr: 1.0e-5
"""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def message(text: str) -> str:
    Path("m.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        load_model("m.yaml")
    return str(caught.value)


@pytest.mark.parametrize("name", UNIFORM)
def test_a_model_said_in_megatron_keys_reads_back_as_itself(name: str) -> None:
    model = load_model(name)
    Path("m.yaml").write_text(yaml.safe_dump(megatron_keys(model)))
    assert replace(load_model("m.yaml"), name=name) == replace(model, towers=())  # which no key says


def test_a_child_wins_over_its_parents_and_a_later_parent_over_an_earlier_one() -> None:
    Path("a.yaml").write_text(f"{SIZES}ffn_hidden_size: 1024\nqk_layernorm: true\n")
    Path("b.yaml").write_text("extends: a.yaml\nffn_hidden_size: 2048\nhidden_size: 256\n")
    Path("c.yaml").write_text("extends: [a.yaml, b]\nhidden_size: 128\n")
    model = load_model("c.yaml")
    assert (model.hidden, model.ffn_hidden, model.has_qk_norm, model.vocab_size) == (128, 2048, True, 1024)


def test_an_experiment_file_lays_its_overrides_over_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("m.yaml").write_text(SIZES)
    Path("exp.yaml").write_text(EXPERIMENT)
    assert load_model("./exp.yaml").num_layers == 6
    monkeypatch.setenv("LAYERS", "10")
    assert load_model("./exp.yaml").num_layers == 10


def test_an_experiment_file_finds_models_where_primus_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path("Primus/primus/configs/models/megatron")
    folder.mkdir(parents=True)
    (folder / "m.yaml").write_text(SIZES)
    experiment = Path("Primus/examples/megatron/exp.yaml")
    experiment.parent.mkdir(parents=True)
    experiment.write_text(EXPERIMENT)
    assert load_model(str(experiment)).hidden == 512
    Path("elsewhere.yaml").write_text(EXPERIMENT)
    monkeypatch.setenv("PRIMUS_PATH", "Primus")
    assert load_model("elsewhere.yaml").hidden == 512


def test_without_primus_the_preset_of_the_same_name_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("exp.yaml").write_text(EXPERIMENT.replace("${LAYERS:6}", "16").replace(":m}", ":llama3.1_8B}"))
    model, preset = load_model("exp.yaml"), load_model("llama3.1_8b")
    assert replace(model, name=preset.name, num_layers=32, moe_layers=(), windows=()) == preset
    assert model.num_layers == 16


def test_a_preset_that_stands_in_says_what_the_file_of_primus_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """deepseek_v2_base.yaml has `qk_layernorm: true`: norms of queries and keys where latent attention is off."""
    text = "modules: {pre_trainer: {framework: megatron, model: deepseek_v2_lite.yaml, overrides: "
    Path("e.yaml").write_text(text + "{multi_latent_attention: false}}}")
    monkeypatch.delenv("PRIMUS_PATH", raising=False)
    model = load_model("e.yaml")
    assert (model.latent, model.has_qk_norm, model.constants.norm_epsilon) == (None, True, 1e-06)


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ("2", (True, False, True, False)),
        ('"1"', (True, True, True, True)),
        ("[0, 1, 1, 1]", (False, True, True, True)),
        ('"([0]*1+[1]*3)"', (False, True, True, True)),
        ('"([1]+[0])*2"', (True, False, True, False)),
    ],
)
def test_every_form_of_moe_layer_freq_is_read(given: str, flags: tuple[bool, ...]) -> None:
    Path("m.yaml").write_text(f"{SIZES}num_experts: 8\nmoe_layer_freq: {given}\n")
    assert tuple(load_model("m.yaml").moe_layers) == flags


def test_windows_skip_every_nth_layer() -> None:
    Path("m.yaml").write_text(f"{SIZES}window_size: [127, 0]\nwindow_attn_skip_freq: 2\n")
    assert [layer.window for layer in load_model("m.yaml").layers] == [128, 0, 128, 0]
    assert load_model("m.yaml").kinds == (LayerKind(False, 128), LayerKind(False, 0))


FORMS = "allowed: a whole number, a list or a text such as '([0]*3+[1]*58)'"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (f"{SIZES}extends: [none.yaml]", "m.yaml:6 @ $.extends[0]: no such file 'none.yaml' beside this file or in "
         "primus/configs/models/megatron of a folder above it or of $PRIMUS_PATH"),
        (f"{SIZES}extends: [m.yaml]", "m.yaml:1 @ $: extends itself: m.yaml -> m.yaml; break the cycle"),
        (f"{SIZES}mtp_num_layers: ${{NOT_SET_ANYWHERE}}",
         "m.yaml:6 @ $.mtp_num_layers: environment variable NOT_SET_ANYWHERE is not set; give a default"),
        (SIZES.replace("hidden_size", "hidden_sise"), "m.yaml:2 @ $.hidden_sise: unknown key 'hidden_sise', which may "
         "change the model; did you mean 'hidden_size'?; --ignore hidden_sise skips it\n"
         "m.yaml:1 @ $: missing key hidden_size"),
        (SIZES.replace("vocab_size: 1000", "tokenizer_model: who/knows"), "m.yaml:1 @ $: missing key vocab_size, and "
         "tokenizer 'who/knows' is not listed; add vocab_size or padded_vocab_size, or --set vocab_size="),
        (f"{SIZES}num_experts: 8\nmoe_layer_freq: \"__import__('os').system('x')\"",
         "m.yaml:7 @ $.moe_layer_freq: \"__import__('os').system('x')\" is not a layer pattern "
         f"(a layer pattern is a sum of lists such as [0]*3+[1]*58) - {FORMS}"),
        (f"{SIZES}num_experts: 8\nmoe_layer_freq: [0, 1]",
         "m.yaml:7 @ $.moe_layer_freq: has 2 entries; the model has 4 layers"),
        (f"{SIZES}is_hybrid_model: true", "m.yaml:6 @ $.is_hybrid_model: the experiment's spec decides what these "
         "layers are; read the experiment, or give a pattern or spec"),
        (f"{SIZES}hybrid_override_pattern: M*-X", "m.yaml:6 @ $.hybrid_override_pattern: 'X' is no layer - allowed: "
         "M the stack's mixer, * attention, - MLP, E experts"),
        (f"{SIZES}hybrid_layer_pattern: MM--/*-", "m.yaml:6 @ $.hybrid_layer_pattern: prediction layers '*-' of a kind "
         "that no layer is are not modelled"),
        (f"{SIZES}hybrid_layer_pattern: M*-", "m.yaml:6 @ $.hybrid_layer_pattern: has 3 layers; num_layers is 4"),
        (f"{SIZES}spec: [somewhere, gdn_hybrid_stack_spec]", "m.yaml:6 @ $.spec: spec makes layers of its own, which "
         "this reader does not read; --ignore spec leaves it out knowingly"),
        (f"{SIZES}num_query_groups: 3\ngroup_query_attention: true",
         "m.yaml:1 @ $: num_heads 8 is not a multiple of num_kv_heads 3"),
        (f"{SIZES}swiglu: 1", "m.yaml:6 @ $.swiglu: 1 is not true or false"),
        ("modules: {pre_trainer: {config: x}}",
         "m.yaml:1 @ $.modules: expected modules.pre_trainer.model, the model file of the experiment"),
    ],
)  # fmt: skip
def test_a_bad_model_file_says_where_what_and_what_to_do(text: str, what: str) -> None:
    assert message(text) == what


def test_a_pattern_of_layers_is_the_model_that_huggingface_has() -> None:
    nano = load_model("nemotron3_nano")
    letters = {"Mamba-2 64 x 64, state 128": "M", "attention 32/2": "*"}
    pattern = "".join(letters.get(nano.mixer(kind).name, "E") for kind in nano.layers)
    Path("nano.yaml").write_text(
        "num_layers: 52\nhidden_size: 2688\nffn_hidden_size: 1856\nnum_attention_heads: 32\n"
        "group_query_attention: true\nnum_query_groups: 2\nkv_channels: 128\nis_hybrid_model: true\n"
        f"hybrid_layer_pattern: '{pattern}'\nmamba_num_heads: 64\nmamba_state_dim: 128\nmodel_type: mamba\n"
        "padded_vocab_size: 131072\nswiglu: false\nnormalization: RMSNorm\nposition_embedding_type: none\n"
        "num_experts: 128\nmoe_router_topk: 6\nmoe_shared_expert_intermediate_size: 3712\n"
        "moe_router_enable_expert_bias: true\n"
    )
    read = load_model("nano.yaml")
    assert read.layers == nano.layers and read.total_params == nano.total_params
    text = Path("nano.yaml").read_text()
    Path("biased.yaml").write_text(text + "add_qkv_bias: true\nqk_layernorm: true\nsoftmax_type: learnable\n")
    more = pattern.count("*") * ((32 + 2 * 2) * 128 + 2 * 128 + 32)  # a bias, two norms of a head, a sink for each head
    assert load_model("biased.yaml").total_params == nano.total_params + more
    # Prediction modules have the layers behind a bar, one module each.
    Path("mtp.yaml").write_text(text.replace(f"{pattern}'", f"{pattern}/*E/*E'"))
    attention, experts = (nano.layers[pattern.index(letter)] for letter in "*E")
    found = load_model("mtp.yaml")
    assert found.num_mtp_layers == 2 and found.mtp_kinds == (attention, experts)
    assert found.mtp_params - nano.mtp_params == nano.layer_params(attention)  # without them a module is the last layer
    assert load_model("nemotron3_ultra").mtp_kinds[0].mixer == load_model("nemotron3_ultra").layers[7].mixer


def test_a_config_json_with_a_size_nobody_knows_is_refused() -> None:
    Path("config.json").write_text(
        '{\n"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,\n'
        '"intermediate_size": 128, "vocab_size": 256, "num_memory_heads": 2, "hidden_act": "silu", "ssm_state": 0\n}'
    )
    with pytest.raises(InputError) as caught:
        load_model("config.json")
    what = "unknown key 'num_memory_heads', which may change the model"
    assert str(caught.value).startswith(f"config.json:3 @ $.num_memory_heads: {what}")


def test_an_unknown_model_type_names_the_known_ones() -> None:
    Path("config.json").write_text('{"model_type": "lama"}')
    with pytest.raises(InputError) as caught:
        load_model("config.json")
    assert str(caught.value).startswith(
        "config.json:1 @ $.model_type: unknown model_type 'lama'; did you mean 'llama'?"
    )


WORD = "never_seen_before"


@pytest.mark.daily(8)
@pytest.mark.parametrize("name", UNIFORM)
def test_a_renamed_key_is_refused_by_its_new_name(name: str) -> None:
    """Any one key of a model in Megatron's words, spelled as a word nobody knows."""
    keys = megatron_keys(load_model(name))
    for key in keys:
        Path("m.yaml").write_text(yaml.safe_dump({WORD if k == key else k: v for k, v in keys.items()}))
        with pytest.raises(InputError) as caught:
            load_model("m.yaml")
        assert f"'{WORD}'" in str(caught.value)


@pytest.mark.parametrize("key", ["framework", "config", "model", "overrides"])
def test_a_renamed_key_of_an_experiment_is_refused_by_its_new_name(key: str) -> None:
    Path("m.yaml").write_text(SIZES)
    Path("exp.yaml").write_text(EXPERIMENT.replace(f"    {key}:", f"    {WORD}:"))
    with pytest.raises(InputError) as caught:
        load_model("./exp.yaml")
    assert f"'{WORD}'" in str(caught.value)


def test_an_ignored_key_is_left_out_and_named() -> None:
    Path("m.yaml").write_text(f"{SIZES}quantum_heads: 3\n")
    model = load_model("m.yaml", ignore=["quantum_heads"])
    assert model.ignored == ("quantum_heads",)
    assert model == load_model("m.yaml", ignore=["quantum_heads"])
    with pytest.raises(InputError) as caught:
        load_model("m.yaml", ignore=["quantum_head"])
    assert "the file has no such key; did you mean 'quantum_heads'?" in str(caught.value)


def test_a_tokenizer_gives_the_vocabulary_and_the_user_overrides_it() -> None:
    Path("m.yaml").write_text(SIZES.replace("vocab_size: 1000", "tokenizer_model: Qwen/Qwen2.5-14B"))
    assert load_model("m.yaml").vocab_size == 152064
    assert load_model("m.yaml", vocab_size=1000).vocab_size == 1024


def test_primus_turbos_sink_attention_is_read() -> None:
    Path("m.yaml").write_text(f"{SIZES}use_sink_attention: true\nsink_sliding_window: 128\n")
    model = load_model("m.yaml")
    assert model.has_attention_sinks
    assert tuple(model.windows) == (128, 0, 128, 0)


def test_a_learned_softmax_has_a_number_a_head_under_latent_attention_too() -> None:
    latent = "multi_latent_attention: true\nq_lora_rank: 16\nkv_lora_rank: 16\nqk_head_dim: 16\n"
    latent += "qk_pos_emb_head_dim: 8\nv_head_dim: 16\n"
    for kind in ("", latent):
        Path("m.yaml").write_text(SIZES + kind)
        plain = load_model("m.yaml")
        Path("m.yaml").write_text(f"{SIZES}{kind}softmax_type: learnable\n")
        assert load_model("m.yaml").total_params == plain.total_params + plain.num_layers * plain.num_heads


@pytest.mark.parametrize("framework", ["torchtitan", "maxtext"])
def test_an_experiment_of_another_framework_is_refused_by_its_name(framework: str) -> None:
    Path("m.yaml").write_text(SIZES)
    Path("exp.yaml").write_text(EXPERIMENT.replace("framework: megatron", f"framework: {framework}"))
    with pytest.raises(InputError) as caught:
        load_model("./exp.yaml")
    assert f"models of framework '{framework}' are not read" in str(caught.value)


@pytest.mark.parametrize("section", ["megatron: 7", "megatron:", "huggingface: [1]"])
def test_a_preset_whose_sizes_are_no_mapping_is_refused(section: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"title: Mine\nsource: here\n{section}\n")
    with pytest.raises(InputError, match="is no mapping of the model's sizes"):
        load_model(str(path))
