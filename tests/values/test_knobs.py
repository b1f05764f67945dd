"""The table of knobs: its rows agree with each other and with the columns of `Candidates`."""

import pytest

from primus_search.space.enumerate import INNER, OUTER
from primus_search.values.candidates import COLUMN_NAMES, DEFAULTS, Candidates
from primus_search.values.knobs import KNOB, KNOBS, WORDED, Enters, Knob, Scope, reading


def test_the_table_names_the_columns_of_candidates_once() -> None:
    assert len(KNOBS) == len(KNOB)
    assert set(KNOB) == set(COLUMN_NAMES) == set(DEFAULTS) == set(OUTER + INNER)


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.name)
def test_a_row_refers_to_knobs_and_values_that_exist(knob: Knob) -> None:
    assert {*knob.followers, knob.detail_of or knob.name} <= set(KNOB)
    values = [knob.default, knob.off, *(knob.auto or ())]
    for value in values if knob.words is not None else ():
        assert knob.code(knob.word(value)) == value
    if knob.most is not None:
        assert knob.auto == (knob.default,) or (knob.auto is not None and max(knob.auto) == knob.most)
    if knob.detail_of and knob.detail_key in KNOB[knob.detail_of].members:
        assert knob.has_all, "the bare word of a detailed value means all of it"


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.name)
def test_a_row_printed_in_words_is_read_back(knob: Knob) -> None:
    for value in knob.auto or (knob.default, knob.off):
        if knob.name in ("schedule", "pipeline_layout"):
            continue
        table = Candidates.table(**{knob.name: int(value)})
        assert Candidates.from_words(table.row(0)).columns()[knob.name][0] == int(value)


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.name)
def test_every_knob_enters_some_term(knob: Knob) -> None:
    assert knob.enters & (Enters.TIME | Enters.MEMORY)
    assert knob.name in reading(knob.enters)


def test_kernels_of_experts_alone_are_not_read_by_other_pieces() -> None:
    assert reading(Enters.INSIDE) - reading(Enters.INSIDE, ~Scope.EXPERTS) == {
        knob.name for knob in KNOBS if knob.scope == Scope.EXPERTS and knob.enters & Enters.INSIDE
    }
    assert {"schedule", "fp8"} <= WORDED and "tp" not in WORDED
