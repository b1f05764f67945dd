"""placeholder"""

from pathlib import Path
from typing import Any

from primus_search.declare.source import Document
from primus_search.model import Model


def recognises(data: dict[str, Any]) -> bool:
    return False


def from_document(document: Document, path: Path) -> Model:
    raise NotImplementedError
