"""Names from outside (models, spaces, hardware, hosts): what may be one. Writers quote names besides."""

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
