"""What isolated processes run: JSON in, JSON out. See `isolate`."""

from dataclasses import asdict
from typing import Any

from primus_search.measure.bench import Piece, bench


def bench_pieces(payload: dict[str, Any]) -> list[dict[str, Any]]:
    """Measures the pieces of one candidate on one device, within a common budget of seconds."""
    pieces = [Piece.from_json(text) for text in payload["pieces"]]
    budget_s = payload["budget_s"] / max(len(pieces), 1)
    return [asdict(bench(p, kind=payload["device"], budget_s=budget_s, threads=payload["threads"])) for p in pieces]
