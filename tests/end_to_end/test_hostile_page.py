"""report.html in a browser: neither names and values of the run nor the page's address become markup or script."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.report.html import content
from primus_search.report.html import page as written
from tests.property.test_hostile_names import NAMES
from tests.support.browser import CHROMIUM, DRIVER, MISSING, browser
from tests.support.small_runs import make_run

pytestmark = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING),
    pytest.mark.slow,
]
RUNS = (
    "<img src=x onerror='window.CANARY=1'>",
    "<svg onload='window.CANARY=1'></svg>",
    "</script><script>window.CANARY=1</script>",
    "javascript:window.CANARY=1",
    "\"'><iframe srcdoc='<script>parent.CANARY=1</script>'>",
    "${window.CANARY=1}",
    "{{constructor.constructor('window.CANARY=1')()}}",
    "{a|b}{b}{c}{@0}",
    "0" + ",0" * 5000,
)
OTHER_KEYS = ("colour", "sort", "pins", "compare", "columns", "__proto__", "constructor", "toString")
MARKUP = "document.querySelectorAll('img,svg,iframe,script,object,embed,form,[onerror],[onload]').length"
WALK = """
const [keys, texts] = arguments, wrong = [];
const before = MARKUP;
const next = () => new Promise(done => {
  addEventListener("hashchange", () => done(true), {once: true});
  setTimeout(() => done(false), 3000);
});
for (const text of texts) {
  const moved = next();
  const hash = "#" + keys.map(key => encodeURIComponent(key) + "=" + encodeURIComponent(text)).join("&");
  if (location.hash === hash) continue;
  location.hash = hash;
  if (!await moved) { wrong.push([keys, text.slice(0, 80), location.hash, "took too long"]); break; }
  await new Promise(done => setTimeout(done, 55));  // the browser drops more than 200 navigations in ten seconds
  if (window.CANARY || MARKUP !== before) { wrong.push([keys, text.slice(0, 80)]); break; }
  if (document.querySelectorAll("#pins h3").length > 20) wrong.push([keys, "pins"]);
}
return wrong;
""".replace("MARKUP", MARKUP)
TOUCH = """
for (const node of document.querySelectorAll("#legend button")) { node.click(); node.click(); }
document.getElementById("knob-columns").click();
for (const row of [0, 1, 2]) document.querySelector(`[data-row="${row}"]`).click();
for (const node of document.querySelectorAll("#files button")) node.click();
for (const label of ["CSV", "SVG"]) for (const node of document.querySelectorAll("button"))
  if (node.textContent === label) node.click();
return [window.CANARY || 0, MARKUP];
""".replace("MARKUP", MARKUP)


def with_hostile_words(data: dict[str, Any]) -> dict[str, Any]:
    """The content of a page whose values, labels, notes and launch files are hostile strings."""
    words = [*RUNS[:-1], *(name for name in NAMES if "\ud800" not in name)]
    taken = iter(words * 20)
    rows = dict(data["rows"])
    rows["columns"] = [
        column | {"values": [next(taken) for _ in column["values"]]}
        if column["kind"] == "codes" and all(isinstance(value, str) for value in column["values"])
        else column
        for column in rows["columns"]
    ]
    rows["labels"] = [part | {"words": {key: next(taken) for key in part["words"]}} for part in rows["labels"]]
    exports = {rank: {f"{name}{next(taken)}": next(taken) for name in files} for rank, files in data["exports"].items()}
    return data | {"rows": rows, "notes": words, "exports": exports}


def test_nothing_of_a_run_or_an_address_becomes_markup(tmp_path: Path) -> None:
    run = SavedRun.open(make_run(tmp_path, framework="primus"))
    data = content(run)
    hostile = dict.fromkeys(("space", "model", "hardware", "stack"), RUNS[0])
    plain, other = tmp_path / "plain.html", tmp_path / "other.html"
    plain.write_text(written(run, data), encoding="utf-8")
    other.write_text(written(replace(run, facts=dict(run.facts) | hostile), with_hostile_words(data)), encoding="utf-8")
    with browser() as session:
        counts = []
        for path in (plain, other):
            session.open(path.as_uri())
            ready = "const look = () => document.documentElement.dataset.ready ? done() : setTimeout(look, 20); look()"
            session.wait(f"new Promise(done => {{ {ready} }})")
            counts.append(session.run(TOUCH))
        assert counts[0] == counts[1] and counts[0][0] == 0
        texts = [*RUNS, *(name for name in NAMES if "\ud800" not in name)]
        for first in range(0, len(texts), 50):
            some = json.dumps(texts[first : first + 50])
            for keys in (["filter"], OTHER_KEYS) if first == 0 else (["filter"],):
                assert session.wait(f"(async function() {{ {WALK} }})({json.dumps(keys)}, {some})") == []
        assert session.complaints() == []
