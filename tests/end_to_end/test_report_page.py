"""report.html of 100,000 candidates in a real browser: it requests nothing, logs nothing, and every control works."""

import base64
import csv
import html
import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from primus_search.analysis.explanation import Explained
from primus_search.analysis.glossary import TERMS
from primus_search.analysis.labels import short
from primus_search.analysis.page.roofline import roofline
from primus_search.base.units import GB
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.report.html import content, write_report
from primus_search.report.html_figures import exchanges
from primus_search.values.candidates import COLUMN_NAMES
from tests.support.browser import CHROMIUM, DRIVER, MISSING, Browser, browser
from tests.support.page_rows import columns
from tests.support.small_runs import AXES, make_run

NASTY = "<script>alert(1)</script>"
KEPT = 100_000
MOST_BYTES = 6_000_000
WIDE = AXES | {
    "tp": [1, 2, 4], "vpp": [1, 2, 3], "micro_batch_size": [1, 2, 4, 8], "deepep": [True, False],
    "grouped_gemm": ["turbo", "legacy"], "loss_fusion": [True, False], "overlap_grad_reduce": [True, False],
    "recompute": ["none", "full", "selective", "moe_act", "layernorm", "moe_act+layernorm"],
    "schedule": ["1f1b", "interleaved", "zb-h1", "zbv", "v-half", "v-min"], "fp8": ["none", "hybrid", "blockwise"],
}  # fmt: skip
AXE = Path(__file__).parents[1] / "support" / "axe_core" / "axe.min.js"
in_browser = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING)


def named_like_an_attack(folder: Path) -> Path:
    """A run whose model and notes are markup, with its page."""
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(facts | {"model": NASTY, "notes": [NASTY]}))
    write_report(SavedRun.open(folder))
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return named_like_an_attack(make_run(tmp_path_factory.mktemp("page"), name=NASTY))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that keeps 100,000 candidates."""
    folder = make_run(tmp_path_factory.mktemp("wide"), keep=KEPT, name=NASTY, framework="primus", space=WIDE)
    return named_like_an_attack(folder)


@pytest.fixture(scope="module")
def held(run: Path) -> dict[str, Any]:
    """What the page holds."""
    return content(SavedRun.open(run))


@pytest.fixture(scope="module")
def rows(held: dict[str, Any]) -> dict[str, list[Any]]:
    """The columns that the page holds."""
    return columns(held["rows"])


@pytest.fixture(scope="module")
def session(run: Path) -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture
def page(run: Path, session: Browser) -> Browser:
    """The page, as it is when it is first opened."""
    return opened(session, run)


@pytest.fixture
def small_page(small: Path, session: Browser) -> Browser:
    """The page of a run of few candidates, as it is when it is first opened."""
    return opened(session, small)


def opened(session: Browser, folder: Path, selection: str = "") -> Browser:
    session.open("about:blank")
    session.open((folder / "report.html").as_uri() + selection)
    ready = (
        "const e = document.documentElement; const look = () => e.dataset.ready ? done() : setTimeout(look, 20); look()"
    )
    session.wait(f"new Promise(done => {{ {ready} }})")
    return session


@contextmanager
def resized(session: Browser, width: int, height: int, *, dark: bool = False) -> Iterator[Browser]:
    """The browser with a window of another size and scheme of colours."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    session.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
    session.command("Emulation.setEmulatedMedia", features=[scheme])
    try:
        yield session
    finally:
        session.command("Emulation.clearDeviceMetricsOverride")
        session.command("Emulation.setEmulatedMedia", features=[])


def text(page: Browser, selector: str) -> str:
    return str(page.run("return document.querySelector(arguments[0]).textContent", selector))


def cells(page: Browser, selector: str) -> list[list[str]]:
    rows = "[...document.querySelectorAll(arguments[0] + ' tbody tr')]"
    found: list[list[str]] = page.run(f"return {rows}.map(r => [...r.cells].map(c => c.textContent))", selector)
    return found


def type_filter(page: Browser, filter_text: str) -> None:
    script = "const f = document.getElementById('filter'); f.value = arguments[0]; f.dispatchEvent(new Event('input'))"
    page.run(script, filter_text)


def matching(page: Browser) -> int:
    return int(text(page, "#count").split(" of ")[0].replace(",", ""))


def click(page: Browser, selector: str) -> None:
    page.run("document.querySelector(arguments[0]).click()", selector)


def press(page: Browser, selector: str, key: str) -> None:
    event = "new KeyboardEvent('keydown', {key: arguments[1], bubbles: true})"
    page.run(f"document.querySelector(arguments[0]).dispatchEvent({event})", selector, key)


def drag(page: Browser, selector: str, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Press, move and release the mouse between two places of an element, as shares of its width and height."""
    page.run("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", selector)
    box = page.run(
        "const b = document.querySelector(arguments[0]).getBoundingClientRect(); return [b.x, b.y, b.width, b.height]",
        selector,
    )
    places = [(box[0] + x * box[2], box[1] + y * box[3]) for x, y in (start, ((start[0] + end[0]) / 2, end[1]), end)]
    (x, y), *path = places
    page.command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    page.command("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", buttons=1, clickCount=1)
    for x, y in path:
        page.command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, button="left", buttons=1)
    page.command("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", clickCount=1)


def catch_downloads(page: Browser) -> None:
    """Keep what links would download in `window.saved`: the name, and the text or the address of data."""
    page.run(
        "window.saved = []; HTMLAnchorElement.prototype.click = function () { const {download, href} = this;"
        "if (href.startsWith('data:')) saved.push([download, href]);"
        "else window.waits = window.blobs.get(href).text().then(text => saved.push([download, text])); };"
        "window.blobs = new Map(); const make = URL.createObjectURL;"
        "URL.createObjectURL = blob => { const at = make(blob); window.blobs.set(at, blob); return at; }"
    )


def saved(page: Browser) -> tuple[str, str]:
    page.wait("window.waits")
    name, found = page.run("return saved.pop()")
    return name, found


# --- without a browser -----------------------------------------------------------------------------------------------


def test_what_a_run_is_called_is_text_and_never_markup(small: Path) -> None:
    page_text = (small / "report.html").read_text()
    assert page_text.count("<script") == 4  # data, columns, the library, the script of the page
    assert NASTY not in page_text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page_text and "unsafe-inline'; script-src 'sha256-" in page_text


def test_the_page_names_no_address(small: Path) -> None:
    page_text = (small / "report.html").read_text()
    assert not re.findall(r"""<[^>]*(?:src|href)\s*=\s*["'](?!data:|#)""", page_text)
    assert {re.match(r"https?://[\w.]*", found)[0] for found in re.findall(r"https?://\S*", page_text)} <= {
        "http://www.w3.org"
    }  # type: ignore[index]


def test_the_first_screen_needs_no_script(small: Path) -> None:
    head = (small / "report.html").read_text().split("<noscript>")[0]
    best = SavedRun.open(small).ranking[0]
    for told in (short(best), f"{best['expected_tokens_per_s_per_gpu']:,.0f}", "vs A", "primus-search export RUN A"):
        assert told in head


# --- in a browser ----------------------------------------------------------------------------------------------------


@in_browser
def test_it_loads_silently_and_requests_nothing(run: Path, page: Browser) -> None:
    assert (run / "report.html").stat().st_size <= MOST_BYTES
    assert page.complaints() == [] and page.asked() == []
    assert text(page, "h1") == NASTY and NASTY in text(page, "#about")
    assert matching(page) >= KEPT
    shown = page.run("return [...document.querySelectorAll('section')].filter(s => !s.hidden).map(s => s.id)")
    assert set(shown) >= {"choices", "explore", "pinned", "knobs", "evidence", "funnel", "about"}


@in_browser
def test_a_filter_acts_on_all_candidates_in_plot_axes_and_table(page: Browser, rows: dict[str, list[Any]]) -> None:
    lines = text(page, "#parallel-status")
    speed = rows["expected_tokens_per_s_per_gpu"]
    for wanted, holds in (
        ("fp8=none", lambda i: rows["fp8"][i] == "none"),
        ("TP=2|4 schedule!=1f1b", lambda i: rows["tp"][i] != 1 and rows["schedule"][i] != "1f1b"),
        ("mbs>1 bubble<=5", lambda i: rows["micro_batch_size"][i] > 1 and rows["bubble_ratio"][i] <= 0.05),
        ("deepep TP2", lambda i: rows["deepep"][i] and rows["tp"][i] == 2),
        ("", lambda i: True),
    ):
        type_filter(page, wanted)
        found = [speed[i] for i in range(len(speed)) if holds(i)]
        count, fastest = len(found), max(found)
        near = sum(one >= 0.8 * fastest for one in found)
        assert matching(page) == count, wanted
        assert text(page, "#place").endswith(f"of {count:,}" if count else "none")
        assert f" of the {near:,} candidates within 20 % of the fastest." in text(page, "#parallel-status")
        assert len(cells(page, "#ranking")) == min(50, count)
    assert text(page, "#parallel-status") == lines
    for wanted, problem in (
        ("nosuch=1", "nosuch: no knob or figure of that name"),
        ("nonesuch", "nonesuch: no word of these candidates"),
    ):
        type_filter(page, wanted)
        assert text(page, "#problem") == problem and matching(page) == len(rows["tp"])
    assert page.complaints() == []


@in_browser
def test_the_address_holds_what_is_shown(run: Path, page: Browser) -> None:
    type_filter(page, "fp8=none GB<200")
    click(page, "#ranking [data-sort=GB]")
    click(page, "#ranking tbody tr:nth-child(2) button")
    shown, count, names = cells(page, "#ranking"), matching(page), text(page, "#pins")
    selection = page.run("return location.hash")
    opened(page, run, selection)
    assert (cells(page, "#ranking"), matching(page), text(page, "#pins")) == (shown, count, names)
    opened(page, run, "#filter=tp%3D2&colour=nosuch&pins=7,x,-1,1e9&sort=nosuch")
    assert page.complaints() == [] and text(page, "#pins").count("Unpin") == 1


@in_browser
def test_a_range_of_the_plot_becomes_terms_of_the_filter(page: Browser, rows: dict[str, list[Any]]) -> None:
    click(page, "#select")
    drag(page, "#scatter", (0.3, 0.1), (0.7, 0.6))
    terms = dict(
        re.findall(r"(GB>=|GB<=|speed>=|speed<=)([\d.]+)", page.run("return document.getElementById('filter').value"))
    )
    assert set(terms) == {"GB>=", "GB<=", "speed>=", "speed<="}
    low, high, slow, fast = (float(terms[name]) for name in ("GB>=", "GB<=", "speed>=", "speed<="))
    inside = [
        low <= m / GB <= high and slow <= s <= fast
        for m, s in zip(rows["memory_bytes"], rows["expected_tokens_per_s_per_gpu"], strict=True)
    ]
    assert 0 < matching(page) == pytest.approx(sum(inside), abs=2)
    click(page, "#clear")
    assert matching(page) == len(rows["tp"]) and page.complaints() == []


@in_browser
def test_a_range_of_an_axis_becomes_a_term_of_the_filter(page: Browser, rows: dict[str, list[Any]]) -> None:
    place = page.run("const b = document.getElementById('parallel').clientWidth; return 50 / b")
    drag(page, "#parallel", (place, 0.93), (place, 0.6))
    found = page.run("return document.getElementById('filter').value")
    low, high = map(float, re.fullmatch(r"speed>=([\d.]+) speed<=([\d.]+)", found).groups())  # type: ignore[union-attr]
    inside = sum(low <= speed <= high for speed in rows["expected_tokens_per_s_per_gpu"])
    assert 0 < matching(page) == pytest.approx(inside, abs=2) and inside < len(rows["tp"])
    assert page.complaints() == []


@in_browser
def test_the_legend_switches_values_off_and_on(page: Browser, rows: dict[str, list[Any]]) -> None:
    assert text(page, "#legend [data-code='0']") == "none"
    click(page, "#legend [data-code='0']")
    assert matching(page) == sum(value != "none" for value in rows["fp8"])
    assert (
        page.run("return document.querySelector('#legend [data-code=\"0\"]').getAttribute('aria-pressed')") == "false"
    )
    click(page, "#legend [data-code='0']")
    assert matching(page) == len(rows["fp8"]) and page.run("return document.getElementById('filter').value") == ""
    page.run("const c = document.getElementById('colour'); c.value = 'pp'; c.dispatchEvent(new Event('change'))")
    assert list(text(page, "#legend")) == [str(pp) for pp in sorted(set(rows["pp"]))]


@in_browser
def test_the_table_sorts_turns_pages_and_shows_short_names(
    run: Path, page: Browser, rows: dict[str, list[Any]]
) -> None:
    names = [short(row) for row in SavedRun.open(run).ranking[:50]]
    assert [row[2] for row in cells(page, "#ranking")] == names
    click(page, "#next")
    assert text(page, "#place").startswith("51 to 100 of")
    click(page, "#ranking [data-sort=GB]")
    least = sorted(rows["memory_bytes"])[:50]
    shown = [float(row[8]) for row in cells(page, "#ranking")]
    assert shown == [pytest.approx(value / GB, abs=0.06) for value in least]
    assert (
        page.run("return document.querySelector('[data-sort=GB]').closest('th').getAttribute('aria-sort')")
        == "ascending"
    )
    click(page, "#knob-columns")
    assert "schedule" in page.run("return [...document.querySelectorAll('#ranking th')].map(h => h.textContent)")


@in_browser
def test_candidates_are_pinned_from_choices_table_and_plot(run: Path, page: Browser) -> None:
    assert "#1 " in text(page, "#pins")
    click(page, "#ranking tbody tr:nth-child(3) button")
    assert "#3 " in text(page, "#pins")
    click(page, "#ranking tbody tr:nth-child(3) button")
    assert "#3 " not in text(page, "#pins")
    click(page, "#choices tbody tr:last-child button")
    rank = page.run("return document.querySelector('#choices tbody tr:last-child button').dataset.pinRank")
    assert f"#{rank} " in text(page, "#pins")
    # By keyboard alone: the left end of the frontier.
    least = min(SavedRun.open(run).frontier, key=lambda row: row["memory_bytes"])
    for key in ("ArrowRight", "Enter"):
        press(page, "#scatter", key)
    assert f"{least['expected_tokens_per_s_per_gpu']:,.0f} tokens/s/GPU" in text(page, "#pins")
    assert short(least) in text(page, "#scatter-status")


@in_browser
def test_bars_tell_their_values_on_hover_and_focus(small_page: Browser) -> None:
    click(small_page, "#ranking tbody tr:nth-child(2) button")
    told = small_page.run(
        "const bar = document.querySelector('#pins .stack i'), tip = document.getElementById('tip'); bar.focus();"
        "return [bar.getAttribute('aria-label'), tip.textContent, tip.hidden]"
    )
    assert re.fullmatch(r"[a-z ]+: [\d.]+ m?s \([\d.]+ %\)", told[0]) and told[2] is False
    label, meaning = told[1].split("\n")
    assert label == told[0] and meaning == TERMS[label.split(":")[0]]
    press(small_page, "#pins .stack i", "ArrowRight")
    moved = small_page.run("return document.activeElement.getAttribute('aria-label')")
    assert moved != told[0] and text(small_page, "#tip").startswith(moved)
    small_page.run("document.activeElement.blur()")
    assert small_page.run("return document.getElementById('tip').hidden")
    event = "new PointerEvent('pointermove', {clientX: 40, clientY: 40})"
    small_page.run(f"document.querySelector('#pins .stack i').dispatchEvent({event})")
    assert text(small_page, "#tip") == told[1]


@in_browser
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_frontier_and_step_stand_on_the_first_screen(small: Path, session: Browser, width: int, height: int) -> None:
    with resized(session, width, height) as other:
        opened(other, small)
        ends = other.run(
            "return ['.answer', '.figures', '#step-bar .stack', '#scatter canvas']"
            ".map(one => document.querySelector(one).getBoundingClientRect().bottom)"
        )
        assert max(ends) <= height
        folded = other.run("return [...document.querySelectorAll('header p')].map(p => p.textContent).join(' ')")
        answer = SavedRun.open(small).answer
        assert all(note in folded for note in answer.notes) and not any(one in folded for one in answer.trust)


@in_browser
def test_figures_say_on_focus_what_they_are(small_page: Browser) -> None:
    small_page.run("document.querySelector('.figures [data-words]').focus()")
    assert "nine of ten measured rates" in text(small_page, "#tip")
    small_page.run("document.activeElement.blur()")


def test_the_paragraph_for_whoever_signs_is_text_of_the_answer(small: Path) -> None:
    answer, page_text = SavedRun.open(small).answer, (small / "report.html").read_text()
    paragraph = re.search(r'<p id="paragraph">(.*?)</p>', page_text, re.DOTALL)
    assert paragraph and "\n" not in paragraph[1]
    for words in (answer.what, f"{answer.rate:,.0f} tokens/s/GPU", answer.verdict, answer.trust[0]):
        assert words in html.unescape(paragraph[1])


@in_browser
def test_two_rows_are_compared_knob_by_knob_and_part_by_part(run: Path, page: Browser) -> None:
    ranking = SavedRun.open(run).ranking
    other = next(i for i, row in enumerate(ranking[:50]) if row["schedule"] != ranking[0]["schedule"])
    click(page, f"#ranking tbody tr:nth-child({other + 1}) button")
    a, b = ranking[0], ranking[other]
    differing = [name for name in COLUMN_NAMES if a[name] != b[name]]
    words = {True: "true", False: "false"}
    wanted = {
        name.replace("_", " "): [words[one[name]] if isinstance(one[name], bool) else str(one[name]) for one in (a, b)]
        for name in differing
    }
    assert {row[0]: row[1:] for row in cells(page, "#compare-knobs")} == wanted
    step = {row[0]: row[1:] for row in cells(page, "#compare-step")}
    assert "total" in step and all(re.match(r"[+−]", change) for _, _, change in step.values())
    numbers = [
        float(row[2].replace("−", "-").split(" ")[0]) * (1e-3 if row[2].endswith(" ms") else 1.0)
        for row in step.values()
    ]
    assert sum(numbers[:-1]) == pytest.approx(numbers[-1], abs=1e-4 * len(numbers))
    assert cells(page, "#compare-memory") or "Where the bytes differ" in text(page, "#pins")


@in_browser
def test_a_pinned_row_has_its_launch_file_or_the_command_that_writes_it(
    run: Path, page: Browser, held: dict[str, Any]
) -> None:
    page.command("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    files = held["exports"][1]
    for name, wanted in files.items():
        click(page, f'[data-format="{name}"]')
        assert text(page, "#launch") == wanted
        click(page, "#copy")
        assert (
            page.wait("new Promise(done => setTimeout(() => navigator.clipboard.readText().then(done), 200))") == wanted
        )
    click(page, "#ranking tbody tr:nth-child(40) button")
    assert text(page, "#launch") == f"primus-search export {run} 40"
    assert text(page, "[data-command]") == f"primus-search export {run} A"


@in_browser
def test_what_is_shown_is_saved_as_png_svg_and_csv(page: Browser) -> None:
    catch_downloads(page)
    type_filter(page, "fp8=none tp=2")
    count = matching(page)
    click(page, "[aria-label='Save what matches as CSV']")
    name, found = saved(page)
    table = list(csv.DictReader(io.StringIO(found)))
    assert name == "candidates.csv" and len(table) == count and {row["fp8"] for row in table} == {"none"}
    assert set(COLUMN_NAMES) <= set(table[0])
    for which in ("memory-throughput", "knobs"):
        click(page, f"[aria-label='Save {which} as PNG']")
        name, found = saved(page)
        assert name == which + ".png" and base64.b64decode(found.split(",")[1]).startswith(b"\x89PNG")
        click(page, f"[aria-label='Save {which} as SVG']")
        name, found = saved(page)
        assert name == which + ".svg" and found.startswith("<svg") and "<path" in found
    assert page.complaints() == []


@in_browser
def test_the_pipeline_is_drawn_when_it_comes_into_view(small_page: Browser) -> None:
    if small_page.run("return document.getElementById('pipeline') === null"):
        pytest.skip("the winner has no pipeline")
    small_page.run("document.getElementById('pipeline').scrollIntoView()")
    assert small_page.wait(
        "new Promise(done => setTimeout(() => done(document.querySelector('#gantt canvas') !== null), 500))"
    )
    press(small_page, "#gantt", "+")
    assert small_page.complaints() == []


def test_exchanges_and_gradients_of_the_timeline_add_up_to_the_step(run: Path) -> None:
    row = next((i for i, one in enumerate(SavedRun.open(run).ranking, 1) if one["pp"] > 1), None)
    assert row is not None
    explained = Explained(SavedRun.open(run), row)
    assert explained.timeline is not None
    found, step = exchanges(explained, explained.timeline), explained.figures.step
    line, table = explained.timeline, explained.timeline.table
    passes = slice(*table.offsets[found["of"] : found["of"] + 2])
    busy_s = float((line.end[passes] - line.start[passes]).sum())
    assert {name: share * busy_s for name, share in found["inside"].items()} == pytest.approx(
        {name: step[name] for name in found["inside"]}
    )
    assert 0.0 <= sum(found["inside"].values()) < 1.0
    assert line.makespan + sum(found["after"].values()) <= explained.figures.step_s * 1.001


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run of two sizes, with tokens and a price."""
    folder = make_run(
        tmp_path_factory.mktemp("sizes"), nodes=[1, 2], goal={"tokens": 1e12}, price={"mi355x": 3.0}, keep=500
    )
    write_report(SavedRun.open(folder))
    return folder


@in_browser
def test_scaling_is_a_curve_and_a_table_with_days_and_money(sizes: Path, session: Browser) -> None:
    page = opened(session, sizes)
    table = cells(page, "#scaling")
    assert [row[0] for row in table] == ["MI355X", "MI355X"] and {row[1] for row in table} == {"8", "16"}
    heads = page.run("return [...document.querySelectorAll('#scaling th')].map(h => h.textContent)")
    assert {"days", "M USD", "MWh", "90 %"} <= set(heads)
    page.run("document.getElementById('scaling').scrollIntoView()")
    drawn = "setTimeout(() => done(document.querySelector('#scaling-chart canvas') !== null), 500)"
    assert page.wait(f"new Promise(done => {drawn})")
    assert page.run("return [...document.getElementById('scaling-figure').options].map(o => o.value)") == [
        "tokens_per_s_per_gpu", "days", "cost_USD", "energy_MWh"
    ]  # fmt: skip
    page.run("const c = document.getElementById('scaling-figure'); c.value = 'cost_USD'; c.onchange?.();"
             "c.dispatchEvent(new Event('change'))")  # fmt: skip
    assert page.complaints() == []


@in_browser
def test_sliders_show_projections_of_the_page(sizes: Path, session: Browser) -> None:
    page, what = opened(session, sizes), content(SavedRun.open(sizes))["what_if"]
    page.run("document.getElementById('what-if').scrollIntoView()")
    page.wait("new Promise(done => setTimeout(done, 300))")
    own = cells(page, "#what-if")
    assert [float(row[1].replace(",", "")) for row in own] == pytest.approx(what["base"], abs=0.5)
    days = what["tokens"] / (what["base"][0] * what["gpus"] * 86400)
    assert float(own[0][3].replace(",", "")) == pytest.approx(days, abs=0.06)
    assert float(own[0][4]) == pytest.approx(days * 24 * what["gpus"] * what["price"] / 1e6, rel=0.01)
    place = next(k for k, one in enumerate(what["sliders"]) if one["key"] == "batch")
    move = "const s = document.getElementById(arguments[0]); s.value = s.max; s.dispatchEvent(new Event('input'))"
    page.run(move, f"what-{place}")
    rate = what["sliders"][place]["rates"][-1][0]
    moved = cells(page, "#what-if")[0][1]
    assert (float(moved.replace(",", "")) == pytest.approx(rate, abs=0.5)) if rate else moved == "cannot run"
    assert page.complaints() == []


def test_no_product_is_above_its_roof(run: Path) -> None:
    explained = Explained(SavedRun.open(run), 1)
    found = roofline(explained.job, explained.one)
    peak = max(found["roofs"].values())
    assert {"linear", "experts"} <= {one["family"] for one in found["products"]}
    for one in found["products"]:
        assert 0.0 < one["rate"] <= min(peak, one["intensity"] * found["bytes_per_s"]), one


@in_browser
def test_the_roofline_is_drawn_when_it_comes_into_view(small_page: Browser) -> None:
    small_page.run("document.getElementById('roofline').scrollIntoView()")
    drawn = "setTimeout(() => done(document.querySelector('#roofline-chart canvas') !== null), 500)"
    assert small_page.wait(f"new Promise(done => {drawn})") and small_page.complaints() == []


def busy_s(small_page: Browser) -> float:
    """Processor seconds of the page's main thread until the next frame is drawn."""
    small_page.wait("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    found = page.command("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in found if one["name"] == "TaskDuration"))


@pytest.mark.full
@in_browser
def test_the_page_is_ready_in_a_second_and_a_filter_acts_in_a_tenth(run: Path) -> None:
    """In processor time of the main thread, which other processes do not take; of a filter, the better of two."""
    with browser() as other:
        other.command("Performance.enable", timeDomain="threadTicks")
        opened(other, run)
        assert busy_s(other) <= 1.0
        for wanted in ("fp8=none", "TP=2|4 schedule!=1f1b", "mbs>1 bubble<=5", "deepep TP2", ""):
            taken = []
            for _ in range(2):
                type_filter(other, "GB>0")
                before = busy_s(other)
                type_filter(other, wanted)
                taken.append(busy_s(other) - before)
            assert min(taken) <= 0.1, (wanted, taken)


@in_browser
def test_axe_finds_no_violation(run: Path, page: Browser) -> None:
    click(page, "#ranking tbody tr:nth-child(2) button")
    page.run("for (const one of document.querySelectorAll('details')) one.open = true")
    for part in ("what-if", "pipeline", "roofline"):
        page.run("document.getElementById(arguments[0])?.scrollIntoView()", part)
        page.wait("new Promise(done => setTimeout(done, 300))")
    for dark in (False, True):
        page.command(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        page.run(AXE.read_text(encoding="utf-8") + "; window.axe = axe;")
        told = "v.id + ': ' + v.nodes.map(n => n.html.slice(0, 200) + ' ' + n.failureSummary).join(' | ')"
        found = page.wait(f"axe.run(document).then(result => result.violations.map(v => {told}))")
        assert found == [], dark
    page.command("Emulation.setEmulatedMedia", features=[])


@in_browser
@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (1280, True), (1920, False)])
def test_the_page_scrolls_down_only(small: Path, session: Browser, width: int, dark: bool) -> None:
    with resized(session, width, 800, dark=dark) as other:
        opened(other, small)
        assert other.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        colour = other.run("return getComputedStyle(document.body).backgroundColor")
        assert (sum(int(n) for n in re.findall(r"\d+", colour)[:3]) < 200) == dark
        assert other.complaints() == []


@in_browser
def test_without_a_decompressor_the_page_says_so(small: Path) -> None:
    with browser() as other:
        other.command("Page.addScriptToEvaluateOnNewDocument", source="delete window.DecompressionStream")
        other.open((small / "report.html").as_uri())
        assert other.run("return document.getElementById('unsupported').hidden") is False
        assert "ranking.csv" in text(other, "#unsupported") and other.complaints() == []
