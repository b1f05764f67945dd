"""A model built from fields that were read: every problem at once, and the embedding padded as frameworks pad it.

Vocabulary: frameworks pad the embedding so that tensor parallelism divides it. All readers pad to a multiple of
`make_vocab_size_divisible_by` (128 where a file does not say, as Megatron does at TP 1). The further padding to 128*TP
at higher TP is at most 0.8 % of a 128k vocabulary at TP 8 and is left out, so that one model has one size.
"""

from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.files.fields import Fields
from primus_search.values.model import Model

VOCAB_MULTIPLE = 128

MOST_PARAMS = 1e16
"""Beyond every model; counts of parameters and bytes stay within 64 bits."""


def vocabulary(size: int, multiple: int = VOCAB_MULTIPLE) -> dict[str, int]:
    """Rows of the embedding for a vocabulary, the next multiple, and how many of them pad it."""
    rows = -(-size // multiple) * multiple
    return {"vocab_size": rows, "vocab_padding": rows - size}


def build_model(fields: Fields, **values: Any) -> Model:
    """The model, or InputError with every problem that reading its fields met."""
    if fields.problems:
        raise InputError(fields.problems)
    try:
        model = Model(**values)
    except ValueError as error:
        raise InputError([Problem(fields.where, str(error))]) from None
    if model.total_params > MOST_PARAMS:
        raise InputError([Problem(fields.where, f"describes more than {MOST_PARAMS:.0e} parameters")])
    return model
