"""A space loaded with a record of every text that it was loaded from."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_search.base.guards.files import recorded
from primus_search.declare.space_file import load_space
from primus_search.files.hardware_files import host_hardware
from primus_search.files.snapshot import Snapshot

if TYPE_CHECKING:
    from primus_search.space import Space


def load_recorded(path: str | Path, overrides: Sequence[str], **options: Any) -> "tuple[Space, Snapshot]":
    """The space in a file, as `load_space` gives it with the same options, and the texts that it was loaded from."""

    hosts: list[Path] = []

    def host_file() -> Path:
        hosts.append(host_hardware())
        return hosts[-1]

    with recorded() as texts:
        space = load_space(path, overrides=overrides, host_file=host_file, **options)
    return space, Snapshot.of(texts, space.source, str(hosts[0].resolve()) if hosts else "")
