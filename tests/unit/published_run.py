"""A measured run made of the cells a test names, as `validate` reads it from a table."""

from primus_search.validate.rows import NUMBERS, WORDS, Run


def run_with(cells: dict[str, str]) -> Run:
    """The run whose table has these cells and no others."""
    words = dict.fromkeys(WORDS, "")
    numbers: dict[str, float | None] = dict.fromkeys(NUMBERS, None)
    for name, cell in cells.items():
        if name in numbers:
            numbers[name] = float(cell)
        else:
            words[name] = cell
    return Run(line=2, words=words, numbers=numbers)
