"""`report.html` of a run folder: one self-contained page that works offline and asks nobody for anything.

The page is a shell (this file), a style sheet and a script (`page.css`, `page.js`), and the run as JSON
(`html_data.content`). The script writes text only through `textContent`; the JSON cannot close its element; a content
security policy forbids every request.
"""

import html
import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from primus_search.exploration.run_folder.folder import StoreError
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.report.labels import between, counted, fits, short
from primus_search.units import GB

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
STATIC_ROWS = 10
"""Rows of the table that readers without scripts see."""


def write_report(folder: Path) -> Path:
    """Write `report.html` beside `run.json`, whole or not at all; everything shown is escaped.

    Raises StoreError where it cannot be written.
    """
    from primus_search.report.html_data import content

    run = SavedRun.open(folder)
    target, temporary = folder / "report.html", folder / ".report.html.tmp"
    try:
        temporary.write_text(page(run, content(run)), encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        raise StoreError(f"{target}: cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return target


def page(run: SavedRun, data: Mapping[str, Any]) -> str:
    """The whole page."""
    title = html.escape(str(run.facts["space"]))
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<link rel="icon" href="data:,">',
            f"<title>{title}</title>",
            f"<style>{_file('page.css')}</style></head><body>",
            f"<header><h1>{title}</h1>{_answer(run)}</header>",
            f'<main id="main"><noscript>{_static(run.ranking[:STATIC_ROWS])}</noscript></main>',
            f'<script type="application/json" id="data">{embedded(data)}</script>',
            f"<script>{_file('page.js')}</script>",
            "</body></html>",
            "",
        ]
    )


def embedded(data: Any) -> str:
    """JSON that is safe inside a script element: no markup character survives, and no number JSON does not know."""
    text = json.dumps(_finite(data), separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def _file(name: str) -> str:
    return resources.files("primus_search.report").joinpath(name).read_text(encoding="utf-8")


def _answer(run: SavedRun) -> str:
    """The question and the answer in two sentences."""
    facts, best = run.facts, run.ranking[0]
    kind = "the global optimum under the cost model" if facts["exact"] else "the best found"
    question = (
        f"{facts['model']} on {counted(facts['nodes'], 'node')} ({facts['gpus']} x {facts['hardware']}), sequence "
        f"{facts['workload']['seq_length']}, global batch {facts['workload']['global_batch_size']}: which "
        f"configuration trains fastest?"
    )
    answer = (
        f"{best['tokens_per_s_per_gpu']:,.0f} tokens/s/GPU (90 % interval {best['tokens_per_s_per_gpu_low']:,.0f} to "
        f"{best['tokens_per_s_per_gpu_high']:,.0f}), {best['memory_bytes'] / GB:.1f} GB per GPU ({fits(best)}), "
        f"MFU {best['mfu']:.1%}; {kind}. Time is {best['time_evidence']}, memory "
        f"{best['memory_evidence']}."
    )
    return f"<p>{html.escape(question)}</p><p><strong>{html.escape(short(best))}</strong><br>{html.escape(answer)}</p>"


def _static(rows: Sequence[Mapping[str, Any]]) -> str:
    body = "".join(
        f"<tr><td>{rank}<td>{html.escape(short(row))}<td>{row['tokens_per_s_per_gpu']:,.0f}"
        f"<td>{between(row['tokens_per_s_per_gpu_low'], row['tokens_per_s_per_gpu_high'])}"
        f"<td>{row['memory_bytes'] / GB:.1f}<td>{fits(row)}</tr>"
        for rank, row in enumerate(rows, start=1)
    )
    return f"<table><tr><th>#<th>configuration<th>tokens/s/GPU<th>90 %<th>GB<th>fits</tr>{body}</table>"
