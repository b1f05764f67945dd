"""Orders that took long to find, kept on disk: for the other workers of a search, its last projection, and later runs.

An order at unit costs depends on its name, the four counts and the code that makes it, and on nothing else, so the
folder carries a fingerprint of that code. A file is compressed, which also tells when it is damaged; what cannot be
read is built again, and what cannot be written is not kept: the folder saves time and never changes an order.
"""

import json
import os
import shutil
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
import numpy as np

from primus_search.base.guards.files import cache_folder
from primus_search.base.sources import fingerprint_of
from primus_search.base.units import SECONDS_PER_DAY
from primus_search.schedule.table import Placement, Table
from primus_search.values.candidates import PipelineOrder

WORTH_S = 0.001
"""Processor seconds that an order must have taken to be kept; reading one takes less."""

STALE_DAYS = 30
"""Orders of other versions of the code are deleted when their folder was not written to for so long."""

FACTS = ("name", "stages", "microbatches", "virtual_stages")
COLUMNS = (("offsets", "<i8"), ("kind", "<i1"), ("stage", "<i2"), ("micro_batch", "<i4"), ("overlaps_next", "<i1"))


def kept(order: PipelineOrder, microbatches: int, build: Callable[[], Table]) -> Table:
    """The order on disk, or the one that `build` makes, which is then written if it took long."""
    path = _path(order, microbatches)
    with suppress(OSError, zlib.error, ValueError, KeyError):
        return _read(path.read_bytes())
    started = time.process_time()
    table = build()
    if time.process_time() - started >= WORTH_S:
        with suppress(OSError):
            _write(path, table)
    return table


def is_kept(order: PipelineOrder, microbatches: int) -> bool:
    """Whether the order is on disk."""
    return _path(order, microbatches).exists()


def _path(order: PipelineOrder, microbatches: int) -> Path:
    return folder() / "-".join(map(str, (*order, microbatches)))


FINGERPRINT = fingerprint_of(Path(__file__).parent, np.__version__, numba.__version__)
"""Of the code as it was when it was loaded: files may change while this process runs."""


def folder() -> Path:
    """Where orders of this code live: below $XDG_CACHE_HOME/primus-search, or ~/.cache/primus-search."""
    return cache_folder() / "orders" / FINGERPRINT


def _read(data: bytes) -> Table:
    head, _, body = zlib.decompress(data).partition(b"\n")
    facts, at = json.loads(head), 0
    columns: dict[str, Any] = {}
    for column, dtype in COLUMNS:
        length = facts["stages"] + 1 if column == "offsets" else facts["rows"]
        columns[column] = np.frombuffer(body, dtype=dtype, count=length, offset=at)
        at += columns[column].nbytes
    columns["overlaps_next"] = columns["overlaps_next"].astype(np.bool_)
    return Table(placement=Placement(facts["placement"]), **{name: facts[name] for name in FACTS}, **columns)


def _write(path: Path, table: Table) -> None:
    if not path.parent.exists():
        _tidy(path.parent.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
    facts = {name: table.__getattribute__(name) for name in FACTS}
    facts |= {"placement": table.placement.value, "rows": len(table)}
    body = b"".join(table.__getattribute__(column).astype(dtype).tobytes() for column, dtype in COLUMNS)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_bytes(zlib.compress(json.dumps(facts).encode() + b"\n" + body, level=1))
    beside.replace(path)


def _tidy(orders: Path) -> None:
    for other in orders.glob("*"):
        if time.time() - other.stat().st_mtime > STALE_DAYS * SECONDS_PER_DAY:
            shutil.rmtree(other, ignore_errors=True)
