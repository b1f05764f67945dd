"""Layer patterns: the numbers that a list, a sum of lists or a repeated list stands for, without evaluating code."""

import ast

from primus_search.files.fields import MAX_LAYERS, Fields
from primus_search.files.source import plain


def layer_pattern(text: str) -> tuple[int, ...]:
    """The numbers a layer pattern stands for, without evaluating code.

    Megatron writes patterns as Python lists: sums of repeated lists of whole numbers, with brackets.

    >>> layer_pattern("([0]*3+[1]*2)")
    (0, 0, 0, 1, 1)

    Raises ValueError naming the first thing that cannot be read, and for more than `MAX_LAYERS` entries.
    """
    if len(text) > MAX_LAYERS:
        raise ValueError(f"a layer pattern has at most {MAX_LAYERS} characters")
    try:
        return tuple(_entries(ast.parse(text.strip(), mode="eval").body))
    except SyntaxError as error:
        found = text.strip()[max((error.offset or 1) - 1, 0) :][:12]
        what = f"cannot read {found!r}" if error.msg == "invalid syntax" else error.msg
        raise ValueError(f"{what} in a layer pattern") from error
    except (RecursionError, MemoryError) as error:
        raise ValueError("a layer pattern nests too deeply") from error


def per_layer(fields: Fields, key: str, num_layers: int) -> tuple[int, ...] | None:
    """One whole number per layer from a list or a layer pattern; None after a problem with something else."""
    given = fields.anything(key)
    try:
        found = layer_pattern(given) if isinstance(given, str) else [plain(str(one)) for one in given or ()]
        if not all(isinstance(one, int) and one >= 0 for one in found):
            raise ValueError("it holds whole numbers of at least 0")
    except (TypeError, ValueError) as error:
        forms = "a whole number, a list or a text such as '([0]*3+[1]*58)'"
        fields.problem(key, f"{given!r} is not a layer pattern ({error}) - allowed: {forms}")
        return None
    if len(found) != num_layers:
        fields.problem(key, f"has {len(found)} entries; the model has {num_layers} layers")
        return None
    return tuple(map(int, found))


def _entries(node: ast.expr) -> list[int]:
    """The numbers that a list, a sum of lists or a repeated list stands for."""
    match node:
        case ast.List():
            found = [_whole(one, "a list of a layer pattern holds whole numbers") for one in node.elts]
        case ast.BinOp(op=ast.Add()):
            found = _entries(node.left) + _entries(node.right)
        case ast.BinOp(op=ast.Mult()):
            times = _whole(node.right, "a '*' in a layer pattern needs a whole number after it")
            found = _entries(node.left) * min(times, MAX_LAYERS + 1)
        case _:
            raise ValueError("a layer pattern is a sum of lists such as [0]*3+[1]*58")
    if len(found) > MAX_LAYERS:
        raise ValueError(f"a layer pattern of more than {MAX_LAYERS} layers")
    return found


def _whole(node: ast.expr, otherwise: str) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError(otherwise)
