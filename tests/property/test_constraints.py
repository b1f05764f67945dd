"""The parser of user constraints against Python's own evaluation of the same expression, row by row."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from primus_search.declare import make_space
from primus_search.space import Axis, Constraint, ConstraintError, Enumerator, Space, parse
from primus_search.space.context import Cells
from tests.support.daily import today_or_all

BASE = make_space(
    {"model": "tiny_moe", "hardware": "mi355x", "nodes": 2, "workload": {"seq_length": 256, "global_batch_size": 64}}
)
ENUMERATOR = Enumerator(BASE)
TABLE = ENUMERATOR.rows(np.linspace(0, ENUMERATOR.size - 1, 40).astype(np.int64))
ROWS = [TABLE.row(i) for i in range(len(TABLE))]
CELLS = Cells(ENUMERATOR.job, TABLE.columns(), {}, len(TABLE))

numbers = st.sampled_from(
    ["tp", "pp", "vpp", "ep", "cp", "micro_batch_size", "recompute_num_layers", "sync_free_stage"]
)
literals = st.one_of(st.integers(0, 40).map(str), st.floats(0, 9, allow_nan=False).map(lambda x: f"{x:.3f}"))
switches = st.sampled_from(["deepep", "loss_fusion", "overlap_grad_reduce", "sequence_parallel", "True", "False"])
words = st.sampled_from(
    ["fp8 == 'hybrid'", "'none' != fp8", "schedule in ['1f1b', 'zbv']", "sharding not in ('fsdp2', 'none')"]
)
arithmetic = st.recursive(
    numbers | literals,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(" ".join),
        st.tuples(inner, st.sampled_from(["//", "%", "/"]), st.sampled_from(["tp", "pp", "3"])).map(" ".join),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"-{text}"),
    ),
    max_leaves=6,
)
comparisons = st.one_of(
    st.tuples(arithmetic, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), arithmetic).map(" ".join),
    st.tuples(arithmetic, st.just("<"), arithmetic, st.just("<="), arithmetic).map(" ".join),
    st.tuples(numbers, st.sampled_from(["in", "not in"]), st.just("[1, 2, 4]")).map(" ".join),
)
conditions = st.recursive(
    comparisons | switches | words,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join),
        inner.map(lambda text: f"not ({text})"),
        inner.map(lambda text: f"({text})"),
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("count", today_or_all(120, 300))
def test_a_condition_means_what_python_says_it_means(count: int) -> None:
    @settings(max_examples=count)
    @given(conditions)
    def check(text: str) -> None:
        mask = parse(text)(ENUMERATOR.job, CELLS)
        expected = [bool(eval(text, {"__builtins__": {}}, row)) for row in ROWS]
        assert mask.tolist() == expected

    check()


@pytest.mark.parametrize("count", today_or_all(200, 500))
def test_any_text_is_a_predicate_or_a_constraint_error(count: int) -> None:
    @settings(max_examples=count)
    @given(st.text(alphabet="tp ep<=()[],'1 2+-*/%.andornotin\n\"_$;", max_size=30))
    def check(text: str) -> None:
        try:
            predicate = parse(text)
        except ConstraintError as error:
            assert 0 <= error.position <= len(text)
        else:
            assert predicate(ENUMERATOR.job, CELLS).shape == (len(TABLE),)

    check()


@pytest.mark.parametrize("count", today_or_all(12, 30))
def test_a_constraint_leaves_exactly_the_rows_that_satisfy_it(count: int) -> None:
    small = _small_space(())
    everything = Enumerator(small).chunk(0, 10**9).candidates
    job = Enumerator(small).job

    @settings(max_examples=count)
    @given(conditions)
    def check(text: str) -> None:
        mask = parse(text)(job, Cells(job, everything.columns(), {}, len(everything)))
        left = Enumerator(_small_space((Constraint(text=text),)))
        rows = left.chunk(0, 10**9).candidates
        assert len(rows) == int(mask.sum())
        for name, column in rows.columns().items():
            assert (column == everything.columns()[name][mask]).all()

    check()


def _small_space(constraints: tuple[Constraint, ...]) -> Space:
    narrow: dict[str, tuple[Any, ...]] = {"tp": (1, 2), "pp": (1, 2), "ep": (1, 4), "cp": (1,), "etp": (1,)}
    narrow |= {"loss_fusion": (True,), "sync_free_stage": (0, 1), "micro_batch_size": (1, 4)}
    narrowed = [Axis(name=name, values=values) for name, values in narrow.items()]
    return Space(
        name="small",
        model=BASE.model,
        workload=BASE.workload,
        clusters=(BASE.clusters[0].with_axes(narrowed),),
        constraints=constraints,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp * microbatch <= 16", "unknown name 'microbatch'; did you mean 'microbatches'? - known: "),
        ("tp <= ", "ends where a name or a number should follow (at character 7)"),
        ("tp", "a condition compares something: write for example `tp <= 8` (at character 1)"),
        ("tp <= 8 pp", "cannot read 'pp' (at character 9)"),
        ("fp8 == 'hybird'", "fp8 is never 'hybird'; did you mean 'hybrid'? - known: "),
        ("schedule == '1f1c'", "no schedule is called '1f1c'; did you mean '1f1b'?"),
        ("fp8 < 'hybrid'", "words compare with == and != only (at character 5)"),
        ("fp8 == 1", "cannot compare an axis of words and a number (at character 5)"),
        ("deepep + 1 > 2", "arithmetic needs numbers on both sides (at character 1)"),
        ("tp; import os", "cannot read ';' (at character 3)"),
        ("__import__('os') == 1", "cannot use \"__import__('os')\"; a constraint has names, numbers"),
        ("tp.real > 1", "cannot use 'tp.real'; a constraint has names, numbers, quoted words, "),
        ("tp <= 2 ** 3", "cannot use '2 ** 3'; a constraint has"),
        ("tp is 4", "numbers compare with < <= > >= == != and in (at character 4)"),
        ("tp = 4", "cannot read '='; did you mean '=='? (at character 4)"),
        ("(tp <= 8", "'(' was never closed (at character 1)"),
        ("tp <= 8 # all", "cannot read '#' (at character 9)"),
        ("tp in 4", "`in` needs a list: [1, 2, 4] (at character 7)"),
        ("not " * 100 + "deepep", "nests deeper than 64"),
        ("tp > " + "-" * 1900 + "1", "nests deeper than 64"),
        ("tp <= " + "1" * 3000, "a constraint has at most 2000 characters"),
    ],
)
def test_a_constraint_that_cannot_be_read_says_where_and_what_would_do(text: str, message: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        parse(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "text, word", [("recompute == none", "none"), ("fp8 != hybrid", "hybrid"), ("sharding == fsdp2", "fsdp2")]
)
def test_a_value_without_quotes_is_told_to_be_quoted(text: str, word: str) -> None:
    with pytest.raises(ConstraintError, match=f"{word} is a value: quote it, '{word}'"):
        parse(text)
