"""What commands print: 80 columns, no escape codes where nobody reads them, and JSON that parses, for every command."""

import csv
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from primus_search.analysis.glossary import TERMS, explain_word
from primus_search.analysis.labels import between, chance, evidence_of, short
from primus_search.cli import app
from primus_search.cost.confidence.fit import AT_RISK, FIT_THRESHOLD, FITS
from primus_search.cost.confidence.uncertainty import TIE
from primus_search.exploration.run_folder.saved_run import SavedRun
from tests.support.daily import drawn

ROOT = Path(__file__).parents[2]
NARROW = ["--set", "tp=[1,2]", "--set", "pp=1", "--set", "cp=1", "--set", "recompute=none"]
MIXTURE = [
    *("run", "mixtral_8x22b", "--nodes", "4", "--set", "global_batch_size=256", "--set", "pp=[2,4]", "--set", "cp=1"),
    *("--set", "schedule=1f1b", "--set", "tp=[1,2]", "--bench", "off"),
]
ESCAPE = "\x1b["


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two run folders, `a` and a copy of it, `b`."""
    folder = tmp_path_factory.mktemp("runs")
    printed(["run", "llama3_8b_mi300x", *NARROW, "--bench", "off", "--out", f"{folder / 'a'}"])
    shutil.copytree(folder / "a", folder / "b")
    return folder


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run with `--verbose`, and what it printed."""
    folder = tmp_path_factory.mktemp("mixture") / "run"
    return folder, printed([*MIXTURE, "--verbose", "--out", str(folder)])


def printed(words: list[str], columns: int = 80) -> str:
    """Standard output of a command that succeeds, as a pipe gets it."""
    done = CliRunner().invoke(app, words, env={"COLUMNS": str(columns)})
    assert done.exit_code == 0, done.output
    return done.stdout


PAGES = [
    ["pareto", "RUNS/a"],
    ["explain", "RUNS/a"],
    ["compare", "RUNS/a", "RUNS/b"],
    ["schedules", "--stages", "2", "--microbatches", "4"],
    ["project", "--model", "llama3_8b", "--hardware", "mi300x", "--nodes", "1"],
]


@pytest.mark.parametrize("words", PAGES, ids=lambda words: words[0])
def test_pages_keep_to_80_columns_without_escape_codes_in_a_pipe(words: list[str], runs: Path) -> None:
    text = printed([word.replace("RUNS", str(runs)) for word in words]).replace(str(runs), "RUNS")
    assert ESCAPE not in text
    wide = [line for line in text.splitlines() if len(line.rstrip()) > 80]
    assert not wide, "\n".join(wide)


def test_the_first_row_says_where_its_step_and_its_memory_go(mixture: tuple[Path, str]) -> None:
    text = " ".join(mixture[1].split())
    best = SavedRun.open(mixture[0]).ranking[0]
    step, memory = re.search(r"First row, ([\d.]+ s of step: .*?)\. ([\d.]+ GB of memory: .*?)\. ", text).groups()
    assert float(step.split()[0]) == pytest.approx(best["step_s"], abs=6e-4)
    assert float(memory.split()[0]) == pytest.approx(best["memory_bytes"] / 1e9, abs=0.06)
    shares = [int(share) for share in re.findall(r"(\d+)%", step)]
    sizes = [float(size) for size in re.findall(r"[a-z] ([\d.]+)", memory.partition(": ")[2])]
    assert shares == sorted(shares, reverse=True) and 90 <= sum(shares) <= 102
    assert sizes == sorted(sizes, reverse=True) and 0.9 <= sum(sizes) * 1e9 / best["memory_bytes"] <= 1.02


def test_the_table_of_schedules_cuts_no_figure_short() -> None:
    text = printed(
        ["schedules", "--stages", "5", "--microbatches", "15", "--costs", "10321,14177,6093", "--comm", "1011"]
    )
    assert "interleaved-zb" in text
    assert "…" not in text


def test_stages_and_all_rules_come_with_verbose(mixture: tuple[Path, str]) -> None:
    brief = " ".join(printed([*MIXTURE, "--out", str(mixture[0])]).split())
    whole = " ".join(mixture[1].split())
    assert "rows/s/core" not in brief and "Removed: " not in brief
    assert "rows/s/core" in whole and "Removed: " in whole and "frontier: " in whole
    assert whole.endswith(brief)


def test_the_raw_ranking_names_the_columns_a_window_has_no_room_for(tmp_path: Path) -> None:
    words = ["run", "llama3_8b_mi300x", *NARROW, "--all", "--bench", "off", "--out", str(tmp_path / "run")]
    text = printed(words, columns=56)
    header = next(line for line in text.splitlines() if "configuration" in line)
    assert header.split() == ["#", "configuration", "tok/s/GPU", "GB", "fits"]
    assert "56 columns have no room for: MFU, T/M, bubble, projected, 90 %." in " ".join(text.split())
    header = next(line for line in printed(words, columns=120).splitlines() if "configuration" in line)
    assert header.split() == [
        "#",
        "configuration",
        "tok/s/GPU",
        "90",
        "%",
        "projected",
        "GB",
        "fits",
        "bubble",
        "MFU",
        "T/M",
    ]


def scaling(folder: Path) -> list[dict[str, str]]:
    with (folder / "scaling.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_of_several_clusters_the_best_is_shown_with_the_ranks_that_explain_takes(tmp_path: Path) -> None:
    words = ["run", "llama3_8b_mi300x", *NARROW, "--nodes", "1,2", "--tokens", "1e12", "--bench", "off"]
    text = printed([*words, "--out", str(tmp_path / "run")])
    saved = SavedRun.open(tmp_path / "run")
    best = saved.row(1)
    for one in saved.answer.choices:
        gpus = 8 * saved.row(one.rank)["nodes"]
        assert gpus == 8 * best["nodes"] or f"{gpus} GPUs" in f"{one.what} {one.when}"
    (rung,) = [one for one in scaling(tmp_path / "run") if int(one["nodes"]) == best["nodes"]]
    rate = best["expected_tokens_per_s_per_gpu"] * 8 * best["nodes"]
    days = 1e12 / rate / 86400 / float(rung["goodput"])
    line = next(line for line in text.splitlines() if line.startswith("> MI300X "))
    assert line.split()[2] == f"{8 * best['nodes']:,}" and f"{days:,.1f}" in line.split()
    assert float(rung["gpu_hours"]) == pytest.approx(days * 24 * 8 * best["nodes"])
    frontier = printed(["pareto", str(tmp_path / "run")])
    assert f"This is the frontier of nodes={best['nodes']};" in frontier
    assert "scaling" in text


def test_every_row_is_shown_with_its_interval_its_chance_to_fit_and_its_tie(tmp_path: Path) -> None:
    text = printed([*MIXTURE, "--all", "--top", "100", "--out", str(tmp_path / "run")])
    rows = SavedRun.open(tmp_path / "run").ranking
    best = rows[0]["expected_tokens_per_s_per_gpu"]
    shown = re.findall(r"^ *(\d+)(=?) \S.*? ([\d,]+) +(\S+) +(?:[\d,]+ +)?\d+ +(>?\d+%)", text, re.MULTILINE)
    assert len(shown) == 100
    for rank, tie, rate, ends, fits in shown:
        row = rows[int(rank) - 1]
        low, high = row["tokens_per_s_per_gpu_low"], row["tokens_per_s_per_gpu_high"]
        assert (
            rate == f"{row['expected_tokens_per_s_per_gpu']:,.0f}" and low < row["expected_tokens_per_s_per_gpu"] < high
        )
        assert ends == between(low, high) and fits == chance(row["fit_probability"])
        assert row["memory_verdict"] == (FITS if row["fit_probability"] >= FIT_THRESHOLD else AT_RISK)
        is_tied = row["expected_tokens_per_s_per_gpu"] >= best * (1 - TIE)
        assert row["ties_with_best"] is is_tied and (tie == "=") is (is_tied and rank != "1")
    assert any(tie for _, tie, *_ in shown) and not all(tie for _, tie, *_ in shown[1:])


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(812.4, 934, "812-934"), (9_812, 9_999, "9812-9999"), (9_812, 11_300, "9.8-11.3k"), (98_100, 104_900, "98-105k")],
)
def test_an_interval_takes_ten_characters_at_most(low: float, high: float, text: str) -> None:
    assert between(low, high) == text and len(text) <= 10


def test_a_probability_is_never_certain() -> None:
    assert [chance(p) for p in (0.0, 0.004, 0.006, 0.5, 0.994, 0.996, 1.0)] == [
        "<1%", "<1%", "1%", "50%", "99%", ">99%", ">99%",
    ]  # fmt: skip


def test_brackets_of_a_space_file_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    name = "our [red]llama[/red] [/]"
    printed(["run", "llama3_8b_mi300x", *NARROW, "--set", f"name='{name}'", "--out", str(tmp_path / "r"),
                    "--bench", "off"])  # fmt: skip
    assert name in printed(["explain", str(tmp_path / "r")])


JSON = [
    ["run", "llama3_8b_mi300x", *NARROW, "--bench", "off", "--out", "RUNS/json"],
    ["project", "--model", "llama3_8b", "--hardware", "mi300x", "--nodes", "1"],
    ["explain", "RUNS/a"],
    ["pareto", "RUNS/a"],
    ["compare", "RUNS/a", "RUNS/b"],
    ["schedules", "--stages", "2", "--microbatches", "4"],
    ["export", "RUNS/a", "1"],
    ["models"],
    ["models", "tiny_moe"],
    ["hardware"],
    ["hardware", "mi300x"],
    ["validate", str(ROOT / "tests/oracle/data/measured_memory.csv")],
]


@pytest.mark.daily(5)
@pytest.mark.parametrize("words", JSON, ids=lambda words: " ".join(words[:2]).replace("/", "_"))
def test_json_is_all_that_is_on_standard_output(words: list[str], runs: Path) -> None:
    text = printed([*(word.replace("RUNS", str(runs)) for word in words), "--json"])
    assert json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON")) not in ([], {})


def on_a_terminal(words: list[str], environment: dict[str, str]) -> str:
    """What a command prints on a pseudo terminal."""
    master, slave = pty.openpty()
    everything = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm-256color"} | environment
    command = [sys.executable, "-m", "primus_search", *words]
    with subprocess.Popen(command, stdout=slave, stderr=subprocess.DEVNULL, stdin=slave, env=everything) as process:
        os.close(slave)
        parts = []
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # Linux says so when the last writer has gone
                break
            if not part:
                break
            parts.append(part)
        assert process.wait() == 0
    os.close(master)
    return b"".join(parts).decode()


def test_launch_files_come_in_a_folder_that_is_made_or_is_refused_in_words(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "files"
    printed(["export", str(runs / "a"), "1", "--out", str(out)])
    assert "modules:" in (out / "1" / "primus.yaml").read_text()
    in_the_way = out / "1" / "primus.yaml" / "more"
    done = CliRunner().invoke(app, ["export", str(runs / "a"), "1", "--out", str(in_the_way)])
    assert str(done.exception) == f"--out {in_the_way}: cannot be written: Not a directory"
    done = CliRunner().invoke(app, ["export", str(runs / "a"), "1", "--out", str(tmp_path / "job.yaml")])
    assert "names a folder" in str(done.exception) and not (tmp_path / "job.yaml").exists()


COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-7]|4[0-7]|9[0-7]|10[0-7]|38;[0-9;]+|48;[0-9;]+)m")


def test_no_color_is_obeyed_on_a_terminal(runs: Path) -> None:
    commands = (["pareto", str(runs / "a")], ["schedules", "--stages", "2", "--microbatches", "4"], ["hardware"])
    for words in drawn("no colour", commands, 1):
        assert not COLOUR.search(on_a_terminal(words, {"NO_COLOR": "1"})), words[0]


@pytest.mark.in_turn
def test_a_reader_that_goes_away_ends_a_run_quietly_and_its_folder_is_written(tmp_path: Path) -> None:
    words = ["run", "llama3_8b_mi300x", *NARROW, "--bench", "off", "--out", str(tmp_path / "run")]
    command = f"{sys.executable} -m primus_search {' '.join(words)} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == f"run folder: {tmp_path / 'run'}\n" and done.stdout.count("\n") == 1
    assert SavedRun.open(tmp_path / "run").ranking and list((tmp_path / "run").glob("*.html"))


@pytest.mark.in_turn
def test_every_word_of_the_printed_tables_is_in_the_glossary(tmp_path: Path) -> None:
    """Headings, and the words of each cell that describes a candidate; `+2` counts words left out."""
    out = str(tmp_path / "run")
    sets = [*NARROW[2:], "--set", "tp=[1,2]", "--set", "pp=[1,2]", "--bench", "off", "--out", out]
    words = ["run", "llama3_8b_mi300x", "--nodes", "1,2", "--tokens", "1e12", *sets]
    lines = printed(words, 200).splitlines() + printed([*words, "--all"], 200).splitlines()
    headings = [before for before, line in pairwise(lines) if line.strip().startswith("──")]
    headings += [line for line in lines if line.split()[:2] == ["machine", "GPUs"]]
    assert len(headings) >= 3
    for heading in headings:
        rest = heading
        for term in sorted(TERMS, key=len, reverse=True):
            rest = re.sub(rf"(?<!\S){re.escape(term)}(?!\S)", " ", rest)
        assert not rest.strip(), heading
    run = SavedRun.open(tmp_path / "run")
    cells = {word for row in run.ranking for word in short(row).split()}
    unknown = [word for word in sorted({*cells, *(evidence_of(row) for row in run.ranking)})
               if not explain_word(word)]  # fmt: skip
    assert len(cells) > 10 and not unknown
