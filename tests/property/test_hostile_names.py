"""Text from outside never becomes code: 500 hostile strings through every output, scripts executed beside a canary."""

import csv
import html
import io
import json
import random
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from markupsafe import escape

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.values import FORMULA_SIGNS, name_problem, unguarded
from primus_search.cli.validate import errors_page
from primus_search.declare import make_space
from primus_search.declare.record_table import read_records, write_records
from primus_search.exploration.run_folder.folder import csv_bytes, default_folder
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.files.source import parse, written
from primus_search.launch.write.job import LaunchJob
from primus_search.launch.write.launch_files import launch_files
from primus_search.learning.readers import plain
from primus_search.nightly import night_folder as night_page
from primus_search.nightly.causes import Cause
from primus_search.nightly.night_folder import junit, markdown
from primus_search.nightly.night_run import Check, Night
from primus_search.nightly.observed import Observed, Reason
from primus_search.nightly.sweep import NightlySweep, Tolerances
from primus_search.report.html import content, embedded, page
from primus_search.report.plain_tables import Plain
from primus_search.session.notebook import Run
from tests.launch.test_launch_files import shipped_space
from tests.support.daily import TODAY_OR_ALL, drawn
from tests.support.launched import jobs
from tests.support.small_runs import make_run

CANARY = "CANARY"
PARTS = (
    f"$(touch {CANARY})",
    f"`touch {CANARY}`",
    f"; touch {CANARY} #",
    f"\ntouch {CANARY}\n",
    f"' ; touch {CANARY} ; '",
    f'"; touch {CANARY}; "',
    f"| touch {CANARY}",
    f"&& touch {CANARY}",
    f"\r\ntouch {CANARY}",
    f"<(touch {CANARY})",
    f"${{IFS}}touch${{IFS}}{CANARY}",
    "${HOME}",
    "!!",
    "~",
    "*",
    "?",
    "\\",
    "\\\n",
    "'",
    '"',
    "'''",
    '"""',
    "EOF\n",
    "<script>alert(1)</script>",
    "</script><script>",
    "<!--",
    "-->",
    "]]>",
    "&lt;",
    "javascript:alert(1)",
    "<img src=x>",
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    ",",
    ";",
    "\x1b]0;owned\x07",
    "\x1b[31m",
    "\x9b31m",
    "\x00",
    "[bold red]x[/]",
    "[/]",
    "[link=http://x]x[/link]",
    ":smile:",
    "{{7*7}}",
    "{0.__class__}",
    "%s%n",
    "a: b",
    "- x",
    "# x",
    "*alias",
    "&anchor",
    "!!python/object/apply:os.system ['x']",
    "---",
    "...",
    "<<: *x",
    "[section]",
    "x = 1",
    "\u202e",
    "\u2028",
    "\ud800",
    "\U0001f4a9",
    "../../etc/passwd",
    "/dev/null",
    "-rf",
    "--help",
    "true",
    "null",
    "1e3",
    "x" * 100,
)
COUNT = 500
FRAMEWORKS = ("primus", "megatron", "torchtitan", "nemo")
STUBS = ("torchrun", "python", "python3", "srun", "scontrol", "primus-cli", "sbatch", "apptainer", "docker")


def hostile() -> list[str]:
    rng = random.Random(21)
    mixed = ["".join(rng.choices(PARTS, k=rng.randint(2, 4))) for _ in range(COUNT - len(PARTS))]
    return [*PARTS, *mixed]


NAMES = hostile()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    axes = {"tp": 1, "pp": [1, 2], "etp": 1, "cp": 1, "micro_batch_size": 1, "schedule": "1f1b", "recompute": "none"}
    return SavedRun.open(make_run(tmp_path_factory.mktemp("run"), model="tiny", space=axes))


def test_there_are_500() -> None:
    assert len(NAMES) == COUNT == len(set(NAMES))


def test_a_name_enters_only_if_it_can_be_printed() -> None:
    data = {"model": "tiny", "hardware": "h100", "workload": {"seq_length": 512, "global_batch_size": 64}}
    entered = 0
    for name in NAMES[::25]:
        try:
            space = make_space(data | {"name": name}, environ={})
        except InputError as error:
            assert name_problem(name) and str(error).isprintable()
        else:
            assert space.name == name and name.isprintable()
            entered += 1
    assert entered >= 3


def test_messages_and_file_names_hold_no_control_character() -> None:
    for name in NAMES:
        assert all(sign.isprintable() or sign == "\n" for sign in str(Problem(name, name)))
        slug = default_folder(name).name
        assert slug.isprintable() and not set(slug) & set("/\\$`;|&<>'\"*? ")


def test_tables_hold_no_formula_and_give_back_what_was_written() -> None:
    for name in NAMES:
        if "\ud800" in name:
            continue  # refused where it enters
        rows = list(csv.reader(io.StringIO(csv_bytes([{"label": name, name: "x"}]).decode(), newline="")))
        assert not any(cell.startswith(FORMULA_SIGNS[:-1]) for row in rows for cell in row), name
        assert [unguarded(cell) for cell in rows[0]] == ["label", name] and unguarded(rows[1][0]) == name


@pytest.mark.in_turn
def test_pages_hold_no_markup_of_a_name(run: SavedRun) -> None:
    data = content(run)
    plain = page(run, data)
    for name in NAMES:
        text = embedded({"name": name})
        assert not set(text) & set("<>&") and json.loads(text) == {"name": name}
    for name in NAMES[::10]:
        facts = dict(run.facts) | {"space": name, "model": name, "hardware": name}
        text = page(replace(run, facts=facts), data | {"notes": [name]})
        for sign in ("<script", "</script", "<img", "<!--"):
            assert text.count(sign) == plain.count(sign), name
        assert escape(name) in text


def test_terminals_print_no_markup() -> None:
    for name in NAMES:
        if not name_problem(name):
            stream = io.StringIO()
            Plain(stream).print(name, soft_wrap=True)
            assert stream.getvalue().strip() == name.strip()


def test_yaml_gives_back_what_was_written() -> None:
    for name in NAMES:
        if not name_problem(name):
            assert parse(written({"name": name, "list": [name]}), "x.yaml").data == {"name": name, "list": [name]}


@pytest.fixture(scope="module")
def launched() -> dict[str, LaunchJob]:
    """One candidate per framework, of a model that is no preset: its own name is written."""
    found = {}
    for framework in FRAMEWORKS:
        space = shipped_space("gpt_oss_120b_gb200" if framework == "nemo" else "llama3_8b_mi300x", framework)
        job = next(iter(jobs(space, 1)))
        model = replace(job.model, hidden=job.model.hidden * 2, head_dim=job.model.head_dim * 2)
        found[framework] = replace(job, model=model)
    return found


@pytest.mark.parametrize("count", [60, pytest.param(COUNT, marks=pytest.mark.full)])
def test_launch_files_execute_nothing_of_a_name(count: int, launched: dict[str, LaunchJob], tmp_path: Path) -> None:
    """Every script is executed where each program it starts is a stub; all 500 names under `full`."""
    stubs = tmp_path / "bin"
    stubs.mkdir()
    for name in STUBS:
        (stubs / name).write_text("#!/bin/sh\nexit 0\n")
        (stubs / name).chmod(0o755)
    folder = tmp_path / "files"
    folder.mkdir()
    scripts = []
    for number, name in enumerate(NAMES[:count]):
        job = launched[FRAMEWORKS[number % len(FRAMEWORKS)]]
        for filename, text in launch_files(replace(job, model=replace(job.model, name=name)), "slurm").texts.items():
            if filename.endswith((".sh", ".slurm")):
                scripts.append(f"{number}-{filename}")
                (folder / scripts[-1]).write_text(text, encoding="utf-8")
            elif filename.endswith(".yaml"):
                assert "modules" in parse(text, filename).data
            elif filename.endswith(".toml"):
                assert "training" in tomllib.loads(text)
    assert len(scripts) >= count
    loop = 'for script in *; do (exec bash "./$script") >/dev/null 2>&1 </dev/null; done'
    environment = {"PATH": f"{stubs}:/usr/bin:/bin", "HOME": str(tmp_path)}
    subprocess.run(["bash", "-c", loop], cwd=folder, env=environment, check=False, timeout=120)
    left = [path for path in tmp_path.rglob("*") if CANARY in path.name or path.name == "owned"]
    assert not left and len(list(folder.iterdir())) <= len(scripts) + 20


@pytest.mark.in_turn
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_of_runs_give_back_hostile_words(ending: str, tmp_path: Path) -> None:
    cells = {"model": "llama3.1_8b", "hardware": "h100", "nodes": 2, "seq_length": 8192, "global_batch_size": 64}
    plain = tmp_path / "plain.csv"
    pd.DataFrame([cells | {"tokens_per_s_per_gpu": 9000.0}]).to_csv(plain, index=False)
    (one,) = read_records(plain).runs
    words = ("id", "source", "publisher", "notes", "date")
    groups = [dict(zip(words, NAMES[first :: COUNT // 5], strict=True)) for first in range(COUNT // 5)]
    path = tmp_path / f"runs.{ending}"
    write_records([replace(one, provenance=replace(one.provenance, **group)) for group in groups], path)
    again = [{word: getattr(run.provenance, word) for word in words} for run in read_records(path).runs]
    assert again == [{word: name.replace("\ud800", "?") for word, name in group.items()} for group in groups]
    if ending == "csv":
        rows = list(csv.reader(io.StringIO(path.read_bytes().decode(), newline="")))
        assert not any(cell.startswith(FORMULA_SIGNS[:-1]) for row in rows for cell in row)


def test_other_pages_hold_no_markup_of_a_name() -> None:
    for name in NAMES:
        listed = [{"id": name, "what": name, "key": name, "value": name, "reason": name}]
        figures = {"per_row": [], "groups": [], "memory_per_row": [], "assumed": listed, "skipped_reasons": listed}
        figures |= dict.fromkeys(("rows", "median_abs_error", "p90_abs_error", "bias", "kendall", "coverage_90"), 0.0)
        memory = dict.fromkeys(("ran", "ran_out", "false_oom", "false_fit"), 0.0)
        figures |= {"memory": memory, "overrides": {"runs": 0, "of": 0, "per_row": listed}}
        text = errors_page(name, figures)
        night = hostile_night(name)
        for made in (text, night_page.report(night), night_page.trend(night, [])):
            assert escape(name) in made
            assert not any(sign in made for sign in ("<script", "</script", "<img", "<!--"))
        assert ElementTree.fromstring(junit(night).encode()).find(".//testcase") is not None
        assert not any(sign in markdown(night) for sign in ("<script", "<img", "<!--"))


def hostile_night(name: str) -> Night:
    """A night whose every word from a file is `name`."""
    failed = {"before": name, "after": name, "move": 1.0, "limit": 0.0, "passed": False, "note": name}
    versions = dict.fromkeys(("primus-search", "python", "numpy"), "1")
    empty: dict[str, dict[str, str]] = {"runs": {}, "unanswered": {}, "code": {}, "data": {}}
    reasons = (Reason(date=name, commit=name, text=name),)
    state = Observed(**empty, accuracy=None, work=1, versions=versions, commit=name, reasons=reasons)
    place = {"source": Path("x"), "baseline": Path("x")}
    return Night(
        sweep=NightlySweep(name=name, **place, tolerances=Tolerances(), entries={}),
        state=state,
        baseline=state,
        pairs={},
        checks=(Check(where=name, name=name, **failed),),
        causes=(Cause(where=name, kind="model", what=name, note=name),),
        changes=(name,),
        started=name,
        seconds=0.0,
    )


def test_lines_of_logs_have_no_control_character() -> None:
    for name in NAMES:
        assert all(sign.isprintable() or sign in "\t\r\n\ud800" for sign in plain(name)), name


@pytest.mark.in_turn
@pytest.mark.parametrize("whole", TODAY_OR_ALL)
def test_figures_and_notebooks_show_names_as_text(run: SavedRun, whole: bool) -> None:
    for name in drawn("figures", NAMES, 12, whole=whole):
        answer = dict(run.facts["answer"]) | {"job": name}
        names = {"space": name, "model": name, "hardware": name, "answer": answer}
        found = Run(replace(run, facts=dict(run.facts) | names))
        shown = "".join(found._repr_html_().split())  # lines are wrapped
        assert "".join(html.escape(name).split()) in shown or "\n" in name
        if not name_problem(name):
            found.plot().savefig(io.BytesIO(), format="svg")
