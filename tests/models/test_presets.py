"""Presets are read once: names and sizes ask for all of them, launch files for one after the other."""

from primus_search.files import source
from primus_search.models.presets import _loaded, presets
from primus_search.values.model.shape import shape


def test_every_preset_is_built_once() -> None:
    every = presets()
    built = _loaded.cache_info().misses
    assert presets() == every
    assert _loaded.cache_info().misses == built


def test_caches_hold_what_all_presets_ask_for() -> None:
    for cached in (source._parsed, shape):
        assert cached.cache_info().maxsize > 2 * len(presets())
