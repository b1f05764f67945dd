"""Presets are read once: names and sizes ask for all of them, launch files for one after the other."""

import pytest

from primus_search.files import source
from primus_search.models.preset_names import model_named, no_preset
from primus_search.models.presets import _loaded, presets
from primus_search.values.model.shape import shape


def test_every_preset_is_built_once() -> None:
    every = presets()
    built = _loaded.cache_info().misses
    assert presets() == every
    assert _loaded.cache_info().misses == built


def test_caches_hold_what_all_presets_ask_for() -> None:
    for cached in (source._parsed, shape):
        most = cached.cache_info().maxsize
        assert most is None or most > 2 * len(presets())


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("EleutherAI/gpt-j-6b", "gptj"), ("EleutherAI/gpt-neo-1.3B", "gpt_neo"), ("allenai/OLMo-7B-hf", "olmo"),
        ("tiiuae/Falcon-H1-7B-Instruct", "falcon_h1"), ("google/gemma-3n-E4B-it", "gemma3n"),
        ("state-spaces/mamba-2.8b-hf", "mamba"), ("Salesforce/codegen-350M-mono", "codegen"),
    ],
)  # fmt: skip
def test_a_name_whose_family_no_reader_has_is_refused_with_the_reason(name: str, family: str) -> None:
    """The config.json that a person would give instead is refused by the same words."""
    assert model_named(name, {}) is None
    assert no_preset(name).startswith(f"takes its model from {name}, which no preset is ('{family}' is not modelled: ")


@pytest.mark.parametrize(
    "name", ["allenai/OLMo-2-9B", "EleutherAI/gpt-neox-99b", "/data/bertie", "somebody/new-model-3b"]
)
def test_other_names_are_refused_without_one(name: str) -> None:
    assert no_preset(name) == f"takes its model from {name}, which no preset is"
