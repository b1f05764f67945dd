"""`report.html` of a run folder: one self-contained page that works offline and requests nothing.

`templates/report.html` is the page, readable without scripts; `page/` holds its style sheet and its JavaScript modules,
`page/vendor/` the charting library. Candidates travel as packed columns, everything else of the run as text of the
template or JSON. Scripts write text only through `textContent`; the JSON cannot close its element; a content security
policy admits the scripts of the page by their hashes and forbids every request.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from primus_search.analysis.choices import BEST_BF16, words_of
from primus_search.analysis.labels import between, chance, counted, fits, if_it_fitted, if_it_runs_out, short
from primus_search.base.guards.files import replacing
from primus_search.base.guards.numbers import finite
from primus_search.base.html_templates import rendered
from primus_search.base.units import GB
from primus_search.cost.confidence.uncertainty import TIE
from primus_search.cost.memory.fit import FITS
from primus_search.exploration.expected import RATE
from primus_search.exploration.run_folder.folder import StoreError
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.report.ranking_text import layout_of
from primus_search.values.knobs import NUMERIC

LIBRARY, ENTRY = "vendor/echarts.min.js", "main.js"
IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w.]+)";\n', re.MULTILINE)
EMBEDDED = ("limit", "memory_by_rank", "gantt", "exports")
"""Parts of the content that scripts read; the others are in the text of the page."""


def write_report(run: SavedRun) -> Path:
    """Write `report.html` into the folder of a run, whole or not at all; everything shown is escaped.

    Raises StoreError where it cannot be written.
    """
    from primus_search.report.html_data import content

    target = run.path / "report.html"
    try:
        with replacing(target) as temporary:
            temporary.write_text(page(run, content(run)), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{target}: cannot be written: {error.strerror}") from error
    return target


def page(run: SavedRun, data: Mapping[str, Any]) -> str:
    """The whole page."""
    rows = dict(data["rows"])
    columns = rows.pop("text")
    scripts = [_file(LIBRARY), "\n".join(modules())]
    return rendered(
        "report.html",
        run=run,
        facts=run.facts,
        best=run.ranking[0],
        short=short(run.ranking[0]),
        question=_question(run.facts),
        figures=_figures(run, data),
        sentences=_sentences(run, data),
        chosen=[_choice(choice, run.ranking[0]) for choice in data["chosen"]],
        data=data,
        tie=TIE,
        style=_file("page.css"),
        scripts=scripts,
        sources=" ".join(f"'sha256-{_sha256(script)}'" for script in scripts),
        columns=columns,
        embedded=embedded({"rows": rows, "tie": TIE} | {name: data[name] for name in EMBEDDED if name in data}),
    )


def embedded(data: Any) -> str:
    """JSON that is safe inside a script element: no markup character survives, and no number JSON does not know."""
    text = json.dumps(finite(data), separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


# --- scripts ---------------------------------------------------------------------------------------------------------


def modules(entry: str = ENTRY, seen: set[str] | None = None) -> Iterator[str]:
    """The texts of the page's modules as one script: a module behind those that it imports, imports and exports gone.

    Names are shared, so modules import under the names that others export.
    """
    seen = seen if seen is not None else set()
    seen.add(entry)
    text = _file(entry)
    for name in IMPORT.findall(text):
        if name not in seen:
            yield from modules(name, seen)
    yield re.sub(r"^export ", "", IMPORT.sub("", text), flags=re.MULTILINE)


def _file(name: str) -> str:
    return resources.files("primus_search.report").joinpath("page", *name.split("/")).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# --- the first screen ------------------------------------------------------------------------------------------------


def _question(facts: Mapping[str, Any]) -> str:
    return (
        f"{facts['model']} on {counted(facts['nodes'], 'node')} ({facts['gpus']} x {facts['hardware']}), sequence "
        f"{facts['workload']['seq_length']:,}, global batch {facts['workload']['global_batch_size']:,}"
    )


def _figures(run: SavedRun, data: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The main figures of the first row: value, unit, what else there is to know of it."""
    best = run.ranking[0]
    of = f" of {data['limit']['device_bytes'] / GB:.0f}" if "limit" in data else ""
    interval = between(best["tokens_per_s_per_gpu_low"], best["tokens_per_s_per_gpu_high"])
    projected = f"projected {best['tokens_per_s_per_gpu']:,.0f}"
    return [
        (
            f"{best[RATE]:,.0f}",
            "tokens/s/GPU",
            f"90 % interval {interval}; {projected}",
        ),
        (f"{best['memory_bytes'] / GB:.0f}{of}", "GB per GPU", f"{fits(best)}; {best['memory_evidence']}"),
        (f"{best['mfu']:.1%}", "MFU", f"bubble {best['bubble_ratio']:z.1%}"),
        (f"{best['step_s']:.2f}", "s per step", f"{best['tokens_per_s']:,.0f} tokens/s on {run.facts['gpus']:,} GPUs"),
    ]


def _sentences(run: SavedRun, data: Mapping[str, Any]) -> list[str]:
    """What the recommendation rests on, what it changes, and what comes close to it."""
    facts, best, chosen = run.facts, run.ranking[0], data["chosen"]
    kind = "Global optimum under the cost model" if facts["exact"] else "The best found, not proven to be the optimum"
    found = [f"{kind}: {facts['legal']:,} legal candidates, {facts['feasible']:,} of them fit in memory."]
    if data["ties"] > 1:
        found.append(f"{data['ties']:,} ranked candidates are within {TIE:.0%} of it, the noise between two runs.")
    if data["faster_if_memory_saved"] is not None:
        found.append(if_it_fitted(data["faster_if_memory_saved"]))
    if best["memory_verdict"] != FITS:
        found.append(if_it_runs_out(chosen))
    changed = [knob.told(best) for knob in NUMERIC if best[knob.name] != knob.word(knob.off)]
    if changed:
        plain = [f" Best in BF16: row {one.rank}, {one.change:+.0%}." for one in chosen if BEST_BF16 in one.roles]
        found.append(f"Changes the mathematics: {', '.join(changed)} (docs/numerics.md).{''.join(plain)}")
    gaps = [part.part for part in data.get("coverage", ()) if not part.is_calibrated]
    return [*found, f"Extrapolated: {', '.join(gaps)}."] if gaps else found


def _choice(choice: Any, first: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the table of choices: the first row, and of each other what differs, in words."""
    row: Mapping[str, Any] = choice.row
    words: Sequence[str] = words_of(choice, first) if choice.rank > 1 else ()
    told = ", ".join(words) or ("the recommendation" if choice.rank == 1 else "layout alone")
    return {
        "rank": choice.rank,
        "layout": layout_of(row),
        "speed": f"{row[RATE]:,.0f}",
        "change": f"{choice.change:+.0%}" if choice.rank > 1 else "",
        "memory": f"{row['memory_bytes'] / GB:.0f}",
        "fits": chance(row["fit_probability"]),
        "roles": ", ".join(choice.roles),
        "differs": told,
        "title": short(row),
    }
