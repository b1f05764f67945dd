"""Parameters of configurations as published, against the modules that transformers builds from them.

`published`: 64 config.json files with counts of transformers 5.23; `random`: configurations of each family drawn with a
fixed seed, their modules built on the meta device here.
"""

import contextlib
import copy
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from primus_search.base.errors import InputError
from primus_search.files.known_keys import key_table
from primus_search.models.families.family_table import FAMILIES, TEXT_OF
from primus_search.models.model_files import load_model
from tests.support import daily
from tests.support.daily import TODAY_OR_ALL

PUBLISHED = Path(__file__).parents[3] / "shared" / "models"
COUNTS = PUBLISHED / "parameter_counts.json"
MOST_REFUSED = 4
TOWER_PARTS = ("visual", "vision_tower", "embed_vision", "projector", "vision_model")


def counts() -> dict[str, Any]:
    if not COUNTS.exists():
        return {}
    found: dict[str, Any] = json.loads(COUNTS.read_text())
    return found


@pytest.mark.skipif(not COUNTS.exists(), reason="published configurations are not beside this checkout")
def test_published_configurations_count_what_transformers_builds() -> None:
    """The text model to the last parameter, towers with theirs; at most four files refused, by a name."""
    refused, wrong = [], []
    for name, truth in counts().items():
        try:
            model = load_model(str(PUBLISHED / name))
        except InputError as error:
            refused.append((name, str(error)))
            continue
        if "parts" not in truth:
            continue
        towers = sum(n for part, n in truth["parts"].items() if any(word in part for word in TOWER_PARTS))
        if model.total_params != truth["total"] - towers:
            wrong.append((name, model.total_params, truth["total"] - towers))
        if towers and sum(tower.params for tower in model.towers) != towers:
            wrong.append((name, model.towers, towers))
    assert wrong == []
    assert len(refused) <= MOST_REFUSED
    assert all("model_type" in why for _, why in refused)


DRAWS: dict[str, dict[str, list[Any] | None]] = {
    "hidden_size": {"*": [256, 512, 768]},
    "num_attention_heads": {"*": [4, 8]},
    "num_key_value_heads": {"*": [2, 4]},
    "intermediate_size": {"*": [384, 512, 1024]},
    "vocab_size": {"*": [1000, 1024, 1111]},
    "num_hidden_layers": {"*": [2, 4, 6]},
    "tie_word_embeddings": {"*": [True, False]},
    "head_dim": {"*": [32, 64], "mistral4": None},  # the sum of its two parts there
    "attention_bias": {"*": [True, False]},
    "mlp_bias": {"*": [True, False]},
    "use_bias": {"*": [True, False]},
    "use_qk_norm": {"*": [True, False]},
    "attention_out_bias": {"*": [True, False]},
    "norm_topk_prob": {"*": [True, False]},
    "sliding_window": {"*": [64, 128]},
    "moe_intermediate_size": {"*": [64, 128]},
    "n_routed_experts": {"*": [8, 16]},
    "num_experts": {"*": [8, 16]},
    "num_local_experts": {"*": [4, 8]},
    "num_experts_per_tok": {"*": [2, 3]},
    "n_shared_experts": {"*": [1, 2]},
    "first_k_dense_replace": {"*": [0, 1, 2]},
    "shared_expert_intermediate_size": {"*": [64, 128]},
    "q_lora_rank": {"deepseek_v3": [None, 96], "deepseek_v2": [None, 96], "deepseek_v32": [96], "glm_moe_dsa": [96]},
    "kv_lora_rank": {"*": [48, 64]},
    "qk_nope_head_dim": {"*": [32, 48]},
    "qk_rope_head_dim": {"*": [16, 32]},
    "v_head_dim": {"*": [32, 64]},
    "index_n_heads": {"*": [4, 8]},
    "index_head_dim": {"*": [32, 64]},
    "linear_num_key_heads": {"*": [2, 4]},
    "linear_num_value_heads": {"*": [4, 8]},
    "linear_key_head_dim": {"*": [16, 32]},
    "linear_value_head_dim": {"*": [32, 64]},
    "linear_conv_kernel_dim": {"*": [2, 4]},
}  # fmt: skip
"""Values drawn for a field of every family whose configuration has it ("*"), or of those named."""

RANDOM = (
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5_text",
    "qwen3_5_moe_text", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe", "glm_moe_dsa", "gpt_oss", "gemma2",
    "olmo2", "smollm3", "minimax_m2", "minimax", "arcee", "bamba", "cohere", "cohere2", "cwm", "dots1", "ernie4_5_moe",
    "exaone4", "exaone_moe", "flex_olmo", "glm", "glm4", "glm4_moe_lite", "granitemoe", "granitemoehybrid",
    "granitemoeshared", "hunyuan_v1_dense", "internlm3", "ministral", "ministral3", "mistral4", "solar_open", "youtu",
    "kimi_linear", "gpt_neox", "seed_oss", "starcoder2", "nemotron", "phi3", "granite", "olmo3", "olmoe", "ernie4_5",
    "gemma", "afmoe", "falcon", "granite_swa", "granitemoe_swa", "hunyuan_v1_moe", "hy_v3", "hyperclovax",
    "iquestcoder", "jais2", "mellum", "minicpm3", "opt", "stablelm", "vaultgemma", "gpt_bigcode",
    "mimo_v2_flash", "apertus", "aria_text", "cohere2_moe", "flint", "kolibri1", "laguna", "olmo_hybrid",
)  # fmt: skip


def drawn(family: str, config: Any, seed: int) -> dict[str, Any]:
    """One random configuration of a family: fields that its configuration class has, in small sizes."""
    rng = random.Random(f"{family} {seed}")
    known = config.to_dict()
    chosen: dict[str, Any] = {}
    for key, of_family in DRAWS.items():
        values = of_family.get(family, of_family.get("*"))
        if values is not None and key in known:
            chosen[key] = rng.choice(values)
    heads = chosen.get("num_attention_heads", 4)
    chosen["num_key_value_heads"] = heads if family.startswith(("deepseek", "glm_moe")) else min(heads, 2)
    if "linear_num_value_heads" in chosen:
        chosen["linear_num_value_heads"] = 2 * chosen["linear_num_key_heads"]
    chosen |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "max_position_embeddings": 4096}
    return chosen


def _mistral4(config: Any) -> Any:
    from transformers.models.mistral4.modeling_mistral4 import Mistral4ForCausalLM

    return Mistral4ForCausalLM(config)


OWN_CLASSES = {"mistral4": _mistral4}
"""Families that transformers builds as the text part of another model alone."""


def check(family: str, seed: int, folder: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import torch
    from huggingface_hub import errors as hub

    config = transformers.AutoConfig.for_model(family)
    chosen = drawn(family, config, seed)
    try:
        made = transformers.AutoConfig.for_model(family, **chosen)
    except hub.StrictDataclassError:
        return  # biases that its own class does not take together
    with torch.device("meta"):
        module = OWN_CLASSES.get(family, transformers.AutoModelForCausalLM.from_config)(made)
    path = folder / "config.json"
    path.write_text(json.dumps(made.to_dict(), default=str))
    try:
        model = load_model(str(path))
    except InputError as error:
        assert "not modelled" in str(error) or "unknown key" in str(error)  # refused by the key, never counted wrong
        return
    assert model.total_params == sum(p.numel() for p in module.parameters()), chosen


@pytest.mark.daily(20)
@pytest.mark.parametrize("family", RANDOM)
def test_a_random_configuration_counts_what_transformers_builds(family: str, tmp_path: Path) -> None:
    check(family, 0, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1, 38))
@pytest.mark.parametrize("family", RANDOM)
def test_many_random_configurations_count_what_transformers_builds(family: str, seed: int, tmp_path: Path) -> None:
    check(family, seed, tmp_path)


TIED = [True, False, None]
WRAPPED = (
    "aria", "cohere2_vision", "exaone4_5", "gemma3", "gemma4", "glm4v", "glm4v_moe", "idefics3", "internvl", "kimi_k25",
    "lfm2_vl", "llama4", "llava", "llava_next", "llava_onevision", "mistral3", "qwen2_5_vl", "qwen2_vl", "qwen3_5",
    "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe", "smolvlm", "video_llama_3",
)  # fmt: skip


@pytest.mark.daily(2)
@pytest.mark.parametrize("family", WRAPPED)
def test_ties_of_a_model_inside_another_are_those_of_its_class(family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import torch

    inner = transformers.CONFIG_MAPPING[family]().text_config.model_type
    for outer, text in itertools.product(TIED, TIED):
        section = {"model_type": inner, "num_hidden_layers": 2, "vocab_size": 1024, "pad_token_id": 0}
        section |= {"vocab_size_per_layer_input": 1024} if family == "gemma4" else {}
        section |= {} if text is None else {"tie_word_embeddings": text}
        given = {"model_type": family, "text_config": section}
        given |= {} if outer is None else {"tie_word_embeddings": outer}
        module = None
        for auto in (transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText):
            with contextlib.suppress(ValueError), torch.device("meta"):
                module = module or auto.from_config(transformers.AutoConfig.for_model(**copy.deepcopy(given)))
        assert module is not None
        is_tied = not any("lm_head" in name for name, _ in module.named_parameters())
        path = tmp_path / "config.json"
        sizes = transformers.AutoConfig.for_model(**copy.deepcopy(given)).text_config.to_dict()
        sizes.pop("tie_word_embeddings", None)
        path.write_text(json.dumps(given | {"text_config": sizes | section}, default=str))
        assert load_model(str(path)).is_tied == is_tied, (outer, text)


DEFAULTS = ("gemma3_text", "gemma4_text", "llama4_text", "nemotron_h")


@pytest.mark.parametrize("family", DEFAULTS)
def test_keys_that_transformers_writes_of_itself_are_read(family: str, tmp_path: Path) -> None:
    assert counts_default(family, tmp_path)


@pytest.mark.in_turn
@pytest.mark.slow
@pytest.mark.parametrize("whole", TODAY_OR_ALL)
def test_every_decoder_of_transformers_is_counted_or_refused(whole: bool, tmp_path: Path) -> None:
    """The default configuration of every causal language model: read and right to the last parameter, or refused."""
    auto = pytest.importorskip("transformers.models.auto.modeling_auto", reason="transformers is not installed")
    families = daily.drawn("decoders", list(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES), 40, whole=whole)
    read = [family for family in families if counts_default(family, tmp_path)]
    assert len(read) >= (83 if whole else 3)


def counts_default(family: str, folder: Path) -> bool:
    """Whether a family's default configuration is read; if so, its text model's parameters must be transformers'.

    A bias of the head, a number for each word (Phi), is not modelled.
    """
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import torch

    try:
        config = transformers.AutoConfig.for_model(family)
    except Exception:  # whatever a class without usable defaults raises
        return False
    auto = transformers.models.auto.modeling_auto
    path = folder / f"{family}.json"
    names = {"architectures": [auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family]]}
    path.write_text(json.dumps(config.to_dict() | names, default=str))
    try:
        model = load_model(str(path))
    except InputError:
        return False
    try:
        with torch.device("meta"):
            module = transformers.AutoModelForCausalLM.from_config(config)
    except (AttributeError, TypeError, ValueError):
        return False  # defaults that transformers itself cannot build
    towers = sum(p.numel() for name, p in module.named_parameters() if any(part in name for part in TOWER_PARTS))
    bias = getattr(module.get_output_embeddings(), "bias", None)
    unmodelled = towers + (0 if bias is None else bias.numel())
    assert model.total_params == sum(p.numel() for p in module.parameters()) - unmodelled, family
    return True


def test_an_unknown_family_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128}
    for family, said in (("kimi_k3", "unknown model_type 'kimi_k3'"), ("rwkv7", "unknown model_type 'rwkv7'"),
                         ("falcon_h1", "'falcon_h1' is not modelled: attention and Mamba-2 side by side"),
                         ("longcat_flash", "'longcat_flash' is not modelled: layers that no")):  # fmt: skip
        path.write_text(json.dumps(sizes | {"model_type": family, "intermediate_size": 128}))
        with pytest.raises(InputError) as caught:
            load_model(str(path))
        assert said in str(caught.value)


def test_a_decoder_of_transformers_is_read_or_said_to_be_none_that_is() -> None:
    """So that no family of its own is taken for a slip of another's name."""
    auto = pytest.importorskip("transformers.models.auto.modeling_auto", reason="transformers is not installed")
    others = [family for many in key_table("families")["not_modelled"].values() for family in many]
    assert sorted(others) == sorted(set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - FAMILIES.keys() - TEXT_OF.keys())


DBRX = {
    "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352, "max_seq_len": 32768,
    "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "model_type": "", "rope_theta": 500000},
    "ffn_config": {"ffn_hidden_size": 10752, "model_type": "", "moe_jitter_eps": 0.01, "moe_loss_weight": 0.05,
                   "moe_num_experts": 16, "moe_top_k": 4},
}  # fmt: skip
FALCON = {
    "model_type": "falcon", "bias": False, "hidden_size": 8192, "new_decoder_architecture": True, "vocab_size": 65024,
    "num_attention_heads": 128, "num_hidden_layers": 60, "num_kv_heads": 8, "parallel_attn": True,
}  # fmt: skip


QWEN_VL: dict[str, Any] = {
    "model_type": "qwen2_5_vl", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
    "use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 28, "rms_norm_eps": 1e-6,
    "vision_start_token_id": 151652, "vision_end_token_id": 151653, "image_token_id": 151655,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "vision_config": {"depth": 32},
}  # fmt: skip
"""As published, before transformers moved the text model into a section of its own."""


@pytest.mark.parametrize(
    ("config", "params"), [(DBRX, 131_596_523_520), (FALCON, 41_303_293_952), (QWEN_VL, 7_615_616_512)]
)
def test_a_published_configuration_has_its_published_parameters(
    config: dict[str, Any], params: int, tmp_path: Path
) -> None:
    """dbrx-base, falcon-40b, the text part of Qwen2.5-VL-7B: the tensors of their checkpoints."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert load_model(str(path)).total_params == params


BY_TRANSFORMERS = {
    "deepseek_v3.2": 671_877_929_216,
    "deepseek_v4_flash": 284_332_230_231,
    "deepseek_v4_pro": 1_572_997_179_491,
    "gemma4_26b_a4b": 25_233_141_760,
    "glm5": 743_911_199_232,
    "glm5.2": 743_377_000_704,
    "llama4_maverick": 400_711_848_960,
    "llama4_scout": 107_769_861_120,
    "minimax_m2.5": 228_689_748_992,
    "minimax_m3": 424_945_372_416 + 1_229_193_216,
    "nemotron3_nano": 31_577_937_344,
    "nemotron3_super": 120_668_687_360,
    "nemotron3_ultra": 549_308_968_960,
    "nemotron_h_56b": 56_324_350_464,
    "qwen3.5_122b_a10b": 122_111_526_912,
    "qwen3.5_27b": 26_895_998_464,
    "qwen3.5_397b_a17b": 396_346_350_336,
    "qwen3_0.6b": 596_049_920,
    "qwen3_1.7b": 1_720_574_976,
    "qwen3_32b": 32_762_123_264,
    "qwen3_coder_480b": 480_154_875_392,
    "qwen3_vl_235b_a22b": 235_093_634_560,
    "qwen3_vl_30b_a3b": 30_532_122_624,
    "qwen3_vl_8b": 8_190_735_360,
    "gemma2_27b": 27_227_128_320,
    "gemma2_2b": 2_614_341_888,
    "gemma2_9b": 9_241_705_984,
    "llama3.2_1b": 1_235_814_400,
    "llama3.2_3b": 3_212_749_824,
    "qwen2.5_0.5b": 494_032_768,
    "qwen2.5_1.5b": 1_543_714_304,
    "qwen2.5_14b": 14_770_033_664,
    "qwen2.5_32b": 32_763_876_352,
    "qwen3_14b": 14_768_307_200,
    "qwen3_4b": 4_022_468_096,
    "qwen3_8b": 8_190_735_360,
}
"""Presets by configuration -> parameters of the modules that transformers 5.23 builds from it, towers apart."""


@pytest.mark.daily(8)
@pytest.mark.parametrize("name", BY_TRANSFORMERS)
def test_a_preset_counts_what_transformers_builds(name: str) -> None:
    assert load_model(name).total_params == BY_TRANSFORMERS[name]


@pytest.mark.parametrize(("name", "params"), [("qwen3_vl_30b_a3b", 538_631_408), ("qwen3_vl_235b_a22b", 576_388_336)])
def test_the_tower_of_a_preset_counts_what_transformers_builds(name: str, params: int) -> None:
    assert [tower.params for tower in load_model(name).towers] == [params]


TOWERS = {
    "llama4": {"text_config": {"num_hidden_layers": 2, "num_local_experts": 2, "moe_layers": [1], "layer_types": None}},
    "gemma3": {"text_config": {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}},
    "mistral3": {"text_config": {"num_hidden_layers": 2}},
}
"""Families whose vision tower no published file of the table above has -> fields of a small configuration."""


@pytest.mark.daily(6)
@pytest.mark.parametrize("family", TOWERS)
def test_a_tower_counts_what_transformers_builds(family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import torch

    config = transformers.AutoConfig.for_model(family, **TOWERS[family])
    with torch.device("meta"):
        module = transformers.AutoModelForImageTextToText.from_config(config)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_dict(), default=str))
    text = ("language_model", "lm_head")
    built = sum(p.numel() for name, p in module.named_parameters() if not any(word in name for word in text))
    assert [tower.params for tower in load_model(str(path)).towers] == [built]


@pytest.mark.in_turn
def test_per_layer_embeddings_have_the_flops_that_torch_counts(tmp_path: Path) -> None:
    """Gemma 4 E: torch's counter over transformers' text model with them, less the same model without."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    sizes = {"hidden_size": 256, "num_hidden_layers": 6, "intermediate_size": 512, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1024, "vocab_size_per_layer_input": 1024,
             "num_kv_shared_layers": 0, "sliding_window": 64}  # fmt: skip
    counted, ours = [], []
    for width in (128, 0):
        config = transformers.AutoConfig.for_model("gemma4_text", hidden_size_per_layer_input=width, **sizes)
        module = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        with FlopCounterMode(display=False) as flops, torch.no_grad():
            module(torch.zeros(1, 32, dtype=torch.long), use_cache=False)
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config.to_dict(), default=str))
        counted.append(flops.get_total_flops())
        ours.append(load_model(str(path)).flops_per_token(32) / 3.0 * 32)
    assert ours[0] - ours[1] == pytest.approx(counted[0] - counted[1], rel=0.01)


LEFT_OUT = ("head_dim", "num_key_value_heads", "tie_word_embeddings", "num_attention_heads", "intermediate_size",
            "vocab_size")  # fmt: skip
OF_CLASS = (
    "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "smollm3", "glm", "exaone4", "ministral3",
    "granitemoe", "glm4_moe_lite", "bamba", "solar_open",
)  # fmt: skip
OTHER_NAMES = {
    "mixtral": ("num_local_experts", "num_experts"),
    "deepseek_v3": ("n_routed_experts", "num_local_experts"),
}
"""A key of a family -> another name that its configuration class takes."""


def same_as_transformers(given: dict[str, Any], folder: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import torch

    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**given))
    path = folder / "config.json"
    path.write_text(json.dumps(given))
    assert load_model(str(path)).total_params == sum(p.numel() for p in module.parameters()), given


@pytest.mark.daily(12)
@pytest.mark.parametrize("family", OF_CLASS)
@pytest.mark.parametrize("key", LEFT_OUT)
def test_a_key_left_out_means_what_the_configuration_class_says(family: str, key: str, tmp_path: Path) -> None:
    """Beside a hidden size and layers of its own, so that sizes that follow from others follow from these."""
    sizes = {
        "hidden_size": 1280, "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 64, "intermediate_size": 512, "vocab_size": 1000, "tie_word_embeddings": True, "pad_token_id": 0,
        "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    same_as_transformers({"model_type": family} | {k: v for k, v in sizes.items() if k != key}, tmp_path)


@pytest.mark.parametrize("family", OTHER_NAMES)
def test_another_name_of_a_key_that_the_class_takes_is_read(family: str, tmp_path: Path) -> None:
    key, other = OTHER_NAMES[family]
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 128, "vocab_size": 1024, other: 4}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "n_group": 1, "topk_group": 1}
    given = {"model_type": family} | sizes | {k: v for k, v in heads.items() if family != "mixtral" or "num" in k}
    same_as_transformers(given | {"num_experts_per_tok": 2, "pad_token_id": 0}, tmp_path)
    assert key not in given


LING_MINI = {
    "model_type": "bailing_moe_v2", "num_hidden_layers": 20, "hidden_size": 2048, "intermediate_size": 5120,
    "first_k_dense_replace": 1, "moe_intermediate_size": 512, "num_experts_per_tok": 8, "num_attention_heads": 16,
    "num_experts": 256, "num_key_value_heads": 4, "head_dim": 128, "num_shared_experts": 1, "vocab_size": 157184,
    "n_group": 8, "topk_group": 4, "use_qk_norm": True, "score_function": "sigmoid", "tie_word_embeddings": False,
    "sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 20, "rms_norm_eps": 1e-6,
}  # fmt: skip


def test_ling_mini_has_the_parameters_of_its_model_card(tmp_path: Path) -> None:
    """16B in all, 1.4B active, 789M of them no embedding: huggingface.co/inclusionAI/Ling-mini-2.0."""
    (tmp_path / "config.json").write_text(json.dumps(LING_MINI))
    model = load_model(str(tmp_path / "config.json"))
    inner = model.active_params - 2 * 157184 * 2048
    assert (round(model.total_params / 1e9), round(model.active_params / 1e9, 1), round(inner / 1e6)) == (16, 1.4, 789)
