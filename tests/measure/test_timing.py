"""Timing and the cache of measurements: medians, busy machines, drift, keys, damaged files."""

import pytest

from primus_search.base.errors import InputError
from primus_search.measure.candidate_bench import MeasurementCache, measurement_key, read, save
from primus_search.measure.device.timing import PieceMeasurement, measure, summarize


def a_measurement(**changes):
    fields = {
        "kernel": "layer", "shape": "{}", "dtype": "float32",
        "seconds": {"forward": 0.5}, "spreads_s": {"forward": 0.01},
        "device": "a cpu", "versions": "torch 1", "date": "2026-01-01",
    }  # fmt: skip
    return PieceMeasurement(**(fields | changes))


def test_the_median_ignores_one_slow_repeat():
    assert summarize([1.0, 1.0, 1.0, 9.0, 1.0]).median_s == 1.0


def test_a_busy_machine_is_said_and_cpu_seconds_are_reported():
    timing = summarize([2.0] * 8, [1.0] * 8)
    assert timing.median_s == 1.0
    assert timing.notes == ("busy machine (wall 2.0 x CPU seconds): CPU seconds reported",)


def test_a_clock_that_throttles_is_said():
    timing = summarize([1.0] * 6 + [1.2] * 6)
    assert timing.notes == ("drift: the last repeats are 1.20 x slower than the first (throttling?)",)


def test_steady_repeats_need_no_note():
    assert summarize([0.01] * 10, [0.01] * 10).notes == ()


def test_without_a_budget_a_call_is_warmed_up_and_timed_once():
    calls = []
    timing = measure(lambda: calls.append(sum(range(1000))), device="cpu", budget_s=0.0)
    assert (len(calls), timing.repeats) == (2, 1)


def test_measurements_survive_the_file_and_later_ones_win(tmp_path):
    path = tmp_path / "cache" / "measurements.jsonl"
    MeasurementCache(path).add(
        [a_measurement(), a_measurement(seconds={"forward": 0.7}), a_measurement(dtype="bfloat16")]
    )
    found = MeasurementCache(path)
    assert len(found) == 2
    assert found.get(measurement_key(a_measurement())).seconds == {"forward": 0.7}


def test_another_version_of_torch_is_another_measurement(tmp_path):
    cache = MeasurementCache(tmp_path / "m.jsonl")
    cache.add([a_measurement()])
    assert cache.get(measurement_key(a_measurement(versions="torch 2"))) is None


def test_a_line_cut_short_costs_that_line_in_our_cache_and_is_an_error_in_a_loaded_file(tmp_path):
    path = tmp_path / "m.jsonl"
    save(path, [a_measurement()])
    path.write_text(path.read_text() + '{"kernel": "lay')
    assert len(MeasurementCache(path)) == 1
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:2: is not a measurement (")


def test_a_missing_benchmark_file_says_how_to_make_one(tmp_path):
    with pytest.raises(InputError) as caught:
        read(tmp_path / "none.jsonl")
    assert str(caught.value) == f"{tmp_path}/none.jsonl: no such benchmark file; write one with --save-benchmark"
