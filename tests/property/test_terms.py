"""Terms are shared between candidates that differ in columns a term ignores: here those columns are changed."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from primus_search.cost.memory.chunk_memory import MemoryTable
from primus_search.cost.pipeline import hop_facts
from primus_search.cost.project import HOP_READS, LAYER_READS, REPLICA_READS, SHAPE_READS, Projector, Terms
from primus_search.cost.replicas import replica_terms
from primus_search.cost.stage import pieces, scope_of
from primus_search.declare import make_space
from primus_search.space import AXES, Enumerator
from primus_search.space.context import DERIVED
from primus_search.values.candidates import COLUMN_NAMES, DEFAULTS, Bools, Candidates, Floats, Ints
from primus_search.values.knobs import KNOB, Enters, reading

MODELS = ("llama3.1_8b", "deepseek_v2_lite", "qwen3_30b_a3b")
ROWS = 40


def candidates(model: str, hardware: str = "h100", rows: int = ROWS) -> tuple[Enumerator, Candidates]:
    """Some rows of a space in which every axis has several values."""
    axes = {
        "schedule": ["1f1b", "interleaved", "zb-h1", "v-half"],
        "recompute": ["none", "selective", "mlp", {"full": ["all", 1, 2], "method": ["uniform", "block"]}],
        "sharding": ["none", "distributed_optimizer", "zero2", "fsdp2", "hsdp", "megatron_fsdp"],
        "shard_group": [2, 4],
        "offload_layers": [0, 1],
        "offload_modules": ["none", "core_attn", "core_attn+attn_proj"],
        "microbatch_group": [0, 8],
        "micro_batch_size": [1, 2],
        "sequence_parallel": [True, False],
        "state_format": list(KNOB["state_format"].members),
        "cp_comm": list(KNOB["cp_comm"].members),
        "cuda_graph": ["none", "partial", "full"],
        "tp_overlap": [False, True],
        "exchange_overlap": [False, True],
        "dispatch_backend": ["stack", "deepep", "hybridep"],
        "overlap_grad_reduce": [False, True],
    }
    data = {"model": model, "hardware": hardware, "nodes": 4, "framework": "any", "space": axes}
    space = make_space(data | {"workload": {"seq_length": 4096, "global_batch_size": 256}})
    enumerator = Enumerator(space)
    numbers = np.random.default_rng(0).choice(enumerator.size, rows, replace=False)
    c, rng = enumerator.rows(np.sort(numbers)), np.random.default_rng(1)
    # Axes that every other one may be combined with, drawn beside the space so that it stays small.
    drawn = {
        "optimizer": rng.integers(0, len(KNOB["optimizer"].members), rows),
        "optimizer_offload": 50 * (numbers % 2),
    }
    return enumerator, c.with_columns(drawn)


def changed(c: Candidates, name: str, enumerator: Enumerator) -> Candidates:
    """Every row with another value of one axis, legal or not."""
    column = c.columns()[name]
    values = enumerator.job.column_values(name)
    other = np.where(column == values[-1], values[0], values[-1]).astype(column.dtype)
    return replace(c, **{name: other})


@pytest.mark.daily(1)
@pytest.mark.parametrize("model", MODELS)
def test_terms_depend_on_the_columns_they_are_numbered_by(model: str) -> None:
    enumerator, c = candidates(model)
    job = enumerator.job

    def layer(rows: Candidates) -> Floats:
        p = pieces(job, rows, shares_rows=False)
        return np.concatenate([p.pass_s.ravel(), p.part_s.ravel(), p.recompute_s.ravel()])

    def shape(rows: Candidates) -> Floats:
        terms = Terms(job, None, shares_rows=True)
        found = [terms.shape_list[number] for number in terms.shapes.codes(rows).tolist()]
        return np.concatenate([part.ravel() for one in found for part in (one.counts, one.recomputed, one.is_far)])

    terms: list[tuple[frozenset[str], Candidates, Callable[[Candidates], Floats]]] = [
        (LAYER_READS, c, layer),
        (SHAPE_READS, c, shape),
        (HOP_READS, c, lambda rows: hop_facts(job, rows)),
        (REPLICA_READS, c, lambda rows: replica_terms(job, rows, None)),
    ]
    for read, rows, term in terms:
        usual = term(rows)
        for name in set(AXES) - read:
            assert np.array_equal(term(changed(rows, name, enumerator)), usual), name


@pytest.mark.daily(1)
@pytest.mark.parametrize("model", MODELS)
def test_kernels_and_layer_traffic_ignore_what_they_are_shared_across(model: str) -> None:
    """Rows beside the same with any other value of one axis, legal or not: those that share a key cost the same."""
    enumerator, c = candidates(model)
    job = enumerator.job
    tables = [
        c.with_columns({name: np.full(len(c), value)}) for name in AXES for value in job.column_values(name).tolist()
    ]
    every = {name: np.concatenate([table.columns()[name] for table in tables]) for name in c.columns()}
    c = replace(c, **every)
    shared, alone = pieces(job, c), pieces(job, c, shares_rows=False)
    for name in ("pass_s", "part_s", "recompute_s"):
        assert np.array_equal(shared.__getattribute__(name), alone.__getattribute__(name)), name
    assert reading(Enters.INSIDE) >= {"tp", "cp", "ep", "etp", "micro_batch_size", "fp8"}


@pytest.mark.daily(1)
@pytest.mark.parametrize("model", MODELS)
def test_a_piece_depends_on_knobs_of_its_scope(model: str) -> None:
    enumerator, c = candidates(model)
    job = enumerator.job
    usual = pieces(job, c, shares_rows=False)
    for name in AXES:
        other = pieces(job, changed(c, name, enumerator), shares_rows=False)
        for number, (piece, was) in enumerate(zip(other.pieces, usual.pieces, strict=True)):
            if name not in reading(Enters.LAYER, scope_of(job.model, number)):
                assert np.array_equal(piece.pass_s, was.pass_s), (name, number)
                assert np.array_equal(piece.part_s, was.part_s), (name, number)


@pytest.mark.daily(1)
@pytest.mark.parametrize("model", MODELS)
def test_memory_keys_depend_on_the_columns_they_are_numbered_by(model: str) -> None:
    enumerator, c = candidates(model)
    job = enumerator.job
    keys = MemoryTable(job)

    def moments(rows: Candidates) -> Ints:
        codes = keys.moments.codes(rows)
        return keys.pipelines.number.data[codes]

    for read, codes in (
        (keys.states.reads, keys.states.codes),
        (keys.batches.reads, keys.batches.codes),
        (keys.moments.reads | {"tp", "cp", "micro_batch_size"}, moments),
    ):
        usual = codes(c)
        for name in set(AXES) - read:
            assert np.array_equal(codes(changed(c, name, enumerator)), usual), name


class Recording(Candidates):
    """A table that notes which of its columns are touched; `take` touches none."""

    __slots__ = ()
    touched: ClassVar[set[str]] = set()

    def __getattribute__(self, name: str) -> Any:
        if name in DEFAULTS:
            Recording.touched.add(name)
        return super().__getattribute__(name)

    def columns(self) -> dict[str, Ints | Bools]:
        plain = object.__getattribute__
        return {name: plain(self, name) for name in COLUMN_NAMES}


@pytest.mark.daily(2)
@pytest.mark.parametrize("hardware", ["h100", "mi355x"])
@pytest.mark.parametrize("model", [*MODELS, "qwen3.5_27b", "nemotron3_nano", "gpt_oss_20b"])
def test_a_term_touches_no_column_that_its_key_lacks(model: str, hardware: str) -> None:
    """Keys are the declared columns (`memo.by_columns`); here what key and formula really touch is recorded."""
    enumerator, c = candidates(model, hardware)
    recording = Recording(schedules=c.schedules, layouts=c.layouts, **c.columns())
    terms, memory = Terms(enumerator.job, None, shares_rows=True), MemoryTable(enumerator.job)
    microbatches = DERIVED["microbatches"]
    for memo in (terms.layers, terms.shapes, terms.hops, terms.replicas, memory.states, memory.batches, memory.moments):
        Recording.touched = set()
        memo.codes(recording)
        reads = {name for one in memo.reads for name in (microbatches if one == "microbatches" else (one,))}
        assert Recording.touched <= reads, Recording.touched - reads


@pytest.mark.daily(1)
@pytest.mark.parametrize("model", MODELS)
def test_sharing_rows_changes_no_step(model: str) -> None:
    """Terms computed once for rows that share a key, against every row computed by itself."""
    enumerator, c = candidates(model, rows=400)
    shared, alone = (Projector(enumerator.job, shares_rows=shares).step(c) for shares in (True, False))
    for f in fields(shared):
        assert np.allclose(shared.__getattribute__(f.name), alone.__getattribute__(f.name), rtol=1e-12), f.name


def test_a_memo_forgets_with_the_memos_it_builds_on() -> None:
    enumerator, c = candidates("llama3.1_8b")
    projector = Projector(enumerator.job)
    before = projector.project(c)
    terms = projector.terms
    assert terms.pipelines.size and terms.pipelines.generation == 0
    terms.layers.forget()
    projector.refresh()
    assert terms.layers.size == terms.pipelines.size == 0 and terms.pipelines.generation == 1
    assert terms.hops.size  # nothing that hops read was dropped
    assert np.array_equal(projector.project(c).step.total, before.step.total)
