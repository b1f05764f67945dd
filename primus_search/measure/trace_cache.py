"""Traces of layers, kept in the user's cache: torch is loaded, which takes seconds, only for a layer that is new to it.

One file per layer, below a folder per release of torch and text of this package: the SHA-256 of its content, then the
three numbers. A file that is damaged, or cannot be read or written, counts as none.
"""

import json
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from primus_search.base.errors import InputError
from primus_search.base.guards.files import PACKAGE, cache_folder, fingerprint_of, write_whole
from primus_search.measure.modules.shard import Shard
from primus_search.measure.modules.supported_models import MODULES
from primus_search.measure.traced_layer import TracedLayer
from primus_search.values.model import LayerKind, Model


def traced_layer(model: Model, shard: Shard, kind: LayerKind) -> TracedLayer:
    """What `trace.trace_layer` returns, from the cache where it was traced before."""
    path = None if MODULES else _place(model, shard, kind)  # modules of others are no part of this package
    found = path and _read(path)
    if not found:
        from primus_search.measure.trace import trace_layer

        found = trace_layer(model, shard, kind)
        if path:
            content = json.dumps(asdict(found))
            with suppress(OSError):
                write_whole(path, f"{_digest(content)}\n{content}")
    return found


def _place(model: Model, shard: Shard, kind: LayerKind) -> Path | None:
    """The file of a layer; None where there is no folder for caches."""
    with suppress(InputError):
        return (
            cache_folder()
            / "traces"
            / f"{fingerprint_of(PACKAGE)}-{version('torch')}"
            / _digest(repr((model, shard, kind)))
        )
    return None


def _read(path: Path) -> TracedLayer | None:
    try:
        digest, _, content = path.read_text(encoding="utf-8").partition("\n")
        return TracedLayer(**json.loads(content)) if digest == _digest(content) else None
    except (OSError, ValueError):
        return None


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
