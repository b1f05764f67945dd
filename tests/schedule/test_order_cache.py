"""Orders kept on disk are the orders that would be built, and damage to the folder costs time only."""

import numpy as np
import pytest

from primus_search.schedule import build, order_cache
from primus_search.schedule.table import Table
from primus_search.values.candidates import PipelineOrder

COLUMNS = ("offsets", "kind", "stage", "micro_batch", "overlaps_next")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(order_cache, "WORTH_S", 0.0)
    return order_cache.folder()


def made(name: str, calls: list[str]):
    def call() -> Table:
        calls.append(name)
        return build(name, stages=4, microbatches=10)

    return call


@pytest.mark.parametrize("name", ["zbv", "dualpipe", "gpipe"])
def test_what_is_read_is_what_was_built(folder, name):
    calls: list[str] = []
    first = order_cache.kept(PipelineOrder(name, 4), 10, made(name, calls))
    again = order_cache.kept(PipelineOrder(name, 4), 10, made(name, calls))
    assert calls == [name]
    for column in COLUMNS:
        assert np.array_equal(getattr(first, column), getattr(again, column))
        assert getattr(first, column).dtype == getattr(again, column).dtype
    facts = ("name", "stages", "microbatches", "virtual_stages", "placement", "copies")
    assert [getattr(first, fact) for fact in facts] == [getattr(again, fact) for fact in facts]


@pytest.mark.parametrize("damage", [b"", b"no order", None])
def test_a_damaged_file_is_built_again_and_mended(folder, damage):
    calls: list[str] = []
    order_cache.kept(PipelineOrder("zbv", 4), 10, made("zbv", calls))
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes()[:-7] if damage is None else damage)
    table = order_cache.kept(PipelineOrder("zbv", 4), 10, made("zbv", calls))
    assert np.array_equal(table.kind, build("zbv", stages=4, microbatches=10).kind)
    order_cache.kept(PipelineOrder("zbv", 4), 10, made("zbv", calls))
    assert len(calls) == 2


def test_a_folder_that_cannot_be_made_is_done_without(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("in the way")
    calls: list[str] = []
    for _ in range(2):
        assert len(order_cache.kept(PipelineOrder("zbv", 4), 10, made("zbv", calls)).kind) == 4 * 10 * 6
    assert len(calls) == 2
