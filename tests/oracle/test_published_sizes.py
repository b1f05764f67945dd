"""Parameter counts of the presets against what the publishers of these models say.

Exact totals are the element counts of the released safetensors files (the "model size" of each Hugging Face page
before rounding), without biases of routing, which are buffers; the others are the publishers' own rounded figures,
whose convention for active parameters differs: Mistral and Qwen count the token embedding, DeepSeek, Moonshot and
OpenAI do not.
"""

import math

import pytest

from primus_search.models.presets import load_preset, presets

# preset -> elements of the released weights. Sources: Hugging Face, weights of the repository named in each preset.
RELEASED_WEIGHTS = {
    "llama2_7b": 6_738_415_616,
    "llama2_13b": 13_015_864_320,
    "llama2_70b": 68_976_648_192,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "llama3.1_8b": 8_030_261_248,
    "llama3.1_70b": 70_553_706_496,
    "llama3.1_405b": 405_853_388_800,
    "qwen2.5_7b": 7_615_616_512,
    "qwen2.5_72b": 72_706_203_648,
    "qwen3_30b_a3b": 30_532_122_624,
    "qwen3_235b_a22b": 235_093_634_560,
    "mixtral_8x7b": 46_702_792_704,
    "mixtral_8x22b": 140_620_634_112,
    "deepseek_v2_lite": 15_706_484_224,
    "deepseek_v2": 235_741_434_880,
    "deepseek_v3": 671_026_404_352,
    "gpt_oss_20b": 20_914_757_184,
    "gpt_oss_120b": 116_829_156_672,
    "kimi_k2": 1_026_408_209_408,
}
# preset -> (total, active, digits after the point of the active figure), in 10^9 parameters, as published.
PUBLISHED_BILLIONS = {
    "mixtral_8x7b": (46.7, 12.9, 1),  # Mistral AI, Mixtral of experts, 11 December 2023
    "mixtral_8x22b": (141, 39, 0),  # Mistral AI, Cheaper, Better, Faster, Stronger, 17 April 2024
    "deepseek_v2_lite": (15.7, 2.4, 1),  # arXiv:2405.04434, appendix B
    "deepseek_v2": (236, 21, 0),  # arXiv:2405.04434, abstract
    "deepseek_v3": (671, 36.7, 1),  # DeepSeek-V3 README_WEIGHTS.md
    "qwen3_30b_a3b": (30.5, 3.3, 1),  # model card
    "qwen3_235b_a22b": (235, 22, 0),  # model card
    "gpt_oss_20b": (20.91, 3.61, 2),  # gpt-oss model card (arXiv:2508.10925), table 1
    "gpt_oss_120b": (116.83, 5.13, 2),  # gpt-oss model card (arXiv:2508.10925), table 1
    "kimi_k2": (1026, 32, 0),  # Kimi K2 model card: 1T total, 32B activated
    "gpt3_175b": (174.6, 0, 0),  # arXiv:2005.14165, table D.1
    "nemotron4_15b": (15.7, 0, 0),  # arXiv:2402.16819: 3.2B embedding + 12.5B non-embedding
    "nemotron4_340b": (341.0, 0, 0),  # arXiv:2406.11704: 9.4B embedding + 331.6B non-embedding
}
TOLERANCE = 0.005


@pytest.mark.parametrize("name", RELEASED_WEIGHTS)
def test_a_preset_has_the_parameters_of_the_released_weights(name: str) -> None:
    assert load_preset(name).model.total_params == RELEASED_WEIGHTS[name]


@pytest.mark.parametrize("name", PUBLISHED_BILLIONS)
def test_totals_agree_with_the_published_figure(name: str) -> None:
    published, _, _ = PUBLISHED_BILLIONS[name]
    assert load_preset(name).model.total_params / 1e9 == pytest.approx(published, rel=TOLERANCE)


@pytest.mark.parametrize("name", [name for name, (_, active, _) in PUBLISHED_BILLIONS.items() if active])
def test_active_parameters_agree_with_the_published_figure(name: str) -> None:
    """Within 0.5 %, or equal to the published figure once rounded or cut to as many digits as it has.

    "3.3B" of Qwen3-30B-A3B is 3.353 cut, "2.4B" of DeepSeek-V2-Lite is 2.451 cut, "32B" of Kimi K2 is 31.69 rounded.
    """
    _, published, digits = PUBLISHED_BILLIONS[name]
    ours = load_preset(name).active_params / 1e9
    scale = 10.0**digits
    spellings = {round(ours, digits), math.floor(ours * scale) / scale}
    assert published in spellings or ours == pytest.approx(published, rel=TOLERANCE)


def test_every_preset_says_where_its_sizes_are_from() -> None:
    assert [name for name, preset in presets().items() if not preset.model.source] == []


def test_what_a_preset_says_is_published_is_what_it_counts() -> None:
    wrong = {
        name: preset.model.total_params
        for name, preset in presets().items()
        if preset.published and preset.model.total_params != pytest.approx(preset.published.total_params, rel=TOLERANCE)
    }
    assert wrong == {}
