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
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from primus_search.analysis.labels import between, chance, short
from primus_search.base.guards.files import replacing
from primus_search.base.guards.values import finite
from primus_search.base.html_templates import rendered
from primus_search.base.units import GB
from primus_search.cost.confidence.uncertainty import TIE
from primus_search.exploration.answer import Answer, Choice
from primus_search.exploration.run_folder.folder import StoreError
from primus_search.exploration.run_folder.saved_run import SavedRun

TERA = 1e12
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
    answer = run.answer
    rows = dict(data["rows"])
    columns = rows.pop("text")
    scripts = [_file(LIBRARY), "\n".join(modules())]
    return rendered(
        "report.html",
        run=run,
        facts=run.facts,
        best=run.ranking[0],
        short=short(run.ranking[0]),
        answer=answer,
        figures=_figures(answer),
        chosen=[_choice(choice, run.row(choice.rank)) for choice in answer.choices],
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


def _figures(answer: Answer) -> list[tuple[str, str, str]]:
    """The main figures of the recommendation: value, unit, what else there is to know of it."""
    share = f"{answer.peak_share:.0%} of the {answer.number_format} peak"
    surely = f"{answer.verdict}, probability {chance(answer.fit_probability)}"
    return [
        (f"{answer.rate:,.0f}", "tokens/s/GPU", f"90 % interval {between(answer.low, answer.high)}"),
        (f"{answer.memory_bytes / GB:.0f} of {answer.device_bytes / GB:.0f}", "GB per GPU", surely),
        (f"{answer.flops_per_s / TERA:,.0f}", "TFLOP/s per GPU", share),
    ]


def _choice(choice: Choice, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the table of choices."""
    return {
        "letter": choice.letter,
        "rank": choice.rank,
        "what": choice.what,
        "speed": f"{choice.rate:,.0f}",
        "change": f"{choice.change:+.0%}" if choice.rank > 1 else "",
        "memory": f"{choice.memory_bytes / GB:.0f}",
        "when": choice.when,
        "title": short(row),
    }
