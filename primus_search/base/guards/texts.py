"""Names from outside (models, spaces, hardware, hosts) that may be used, and words as CSV cells that no spreadsheet
evaluates. Other writers quote names in their own format.
"""

MAX_NAME = 200


def name_problem(text: str) -> str:
    """What is wrong with a name, or the empty string: it is empty, too long, or has control characters or surrogates.

    Printable text of any language passes, quotes and shell signs included: each writer quotes them in its own format.
    """
    if not text.strip():
        return "is an empty name"
    if len(text) > MAX_NAME:
        return f"is a name of {len(text):,} characters; at most {MAX_NAME} are allowed"
    if not text.isprintable():
        sign = next(sign for sign in text if not sign.isprintable())
        return f"is a name with a character that cannot be printed ({sign!r}); remove it"
    return ""


FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r", "'")
"""Source: OWASP, "CSV Injection". The quote itself is doubled, so that reading gives back what was written."""


def guarded(text: str) -> str:
    """A word as the text of a cell that no spreadsheet evaluates."""
    return f"'{text}" if text.startswith(FORMULA_SIGNS) else text


def unguarded(cell: str) -> str:
    """The word that `guarded` wrote."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(FORMULA_SIGNS) else cell
