"""Words as CSV cells: a spreadsheet takes what begins with = + - @ for a formula, so a quote stands before it."""

FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r", "'")
"""Source: OWASP, "CSV Injection". The quote itself is doubled, so that reading gives back what was written."""


def guarded(text: str) -> str:
    """A word as the text of a cell that no spreadsheet evaluates."""
    return f"'{text}" if text.startswith(FORMULA_SIGNS) else text


def unguarded(cell: str) -> str:
    """The word that `guarded` wrote."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(FORMULA_SIGNS) else cell
