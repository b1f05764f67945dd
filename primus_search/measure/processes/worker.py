"""What isolated processes run: JSON in, JSON out. See `isolate`."""

from dataclasses import asdict
from typing import Any

import torch.distributed as dist

from primus_search.measure.device.device_info import heat
from primus_search.measure.layer_bench import TimedPiece, bench
from primus_search.measure.processes.rank_group import join, leave


def bench_pieces(payload: dict[str, Any]) -> list[dict[str, Any]]:
    """Measures the pieces of one candidate on one device, within a common budget of seconds.

    As one of several ranks, all of them measure the same piece at the same time: in training no device works alone.
    """
    pieces = [TimedPiece.from_json(text) for text in payload["pieces"]]
    budget_s = payload["budget_s"] / max(len(pieces), 1)
    is_group = payload.get("ranks", 1) > 1
    if is_group:
        join(payload)
    heat(payload["device"])
    found = []
    for piece in pieces:
        if is_group:
            dist.barrier()
        found.append(asdict(bench(piece, kind=payload["device"], budget_s=budget_s, threads=payload["threads"])))
    if is_group:
        leave()
    return found


def warm() -> None:
    """Nothing: that this module is loaded has loaded torch. A device's context must not exist before a fork."""
