"""placeholder"""

from primus_search.declare.source import Document
from primus_search.model import Model


def from_document(document: Document) -> Model:
    raise NotImplementedError
