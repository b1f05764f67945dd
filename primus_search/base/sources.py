"""Which code this is: a hash of source files, for what must not outlive them (kept orders, journals of searches)."""

from hashlib import sha256
from pathlib import Path

PACKAGE = Path(__file__).parent.parent


def fingerprint_of(folder: Path, *versions: str) -> str:
    """16 hex digits of the Python files below a folder and of the versions they were used with."""
    seen = sha256(" ".join(versions).encode())
    for source in sorted(folder.rglob("*.py")):
        seen.update(source.read_bytes())
    return seen.hexdigest()[:16]
