"""The answer of a run: the plainest row inside the noise, choices of different ideas, a screen of 24 lines of 80."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from primus_search.analysis.answer import answer_of, decide
from primus_search.analysis.choices import SLOWEST
from primus_search.analysis.explanation import explain
from primus_search.analysis.labels import short
from primus_search.analysis.row_words import in_words, number_format
from primus_search.analysis.why_not import parse_request
from primus_search.cli import app
from primus_search.cost.confidence.fit import AT_RISK, FITS
from primus_search.cost.confidence.uncertainty import TIE
from primus_search.cost.project import Projector
from primus_search.declare import load_space, make_space
from primus_search.exploration.expected import RATE, is_measured
from primus_search.exploration.neighbours import Evaluator, values_of, word
from primus_search.exploration.ranking_table import num_dimensions, switch_names, switches_of
from primus_search.exploration.result import SearchResult
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.report.first_screen import COLUMNS, LEAST_LINES, LINES, first_screen
from primus_search.report.terminal import print_result
from primus_search.session.complete_search import search
from primus_search.session.notebook import load_run
from primus_search.space.tokens import pairs_of
from primus_search.values.candidates import COLUMN_NAMES, Candidates
from primus_search.values.knobs import KNOB, Fp8

SPACES = {
    "dense": ("llama3_8b_mi300x", []),
    "experts": ("mixtral_8x22b", ["nodes=4", "global_batch_size=256", "cp=1", "schedule=1f1b"]),
    "large": ("llama3.1_405b_h100", ["cp=1"]),
}
CASES = {
    "own 34B model, H200, torchtitan": ("own34b.json", "h200", 24, 8192, 768, "torchtitan", ["cp=1", "tp=1", "vpp=1"]),
    "experts on MI300X": (
        "qwen3_30b_a3b",
        "mi300x",
        16,
        4096,
        2048,
        "primus",
        ["cp=1", "tp=1", "pp=[1,2]"],
    ),
    "own accelerator": ("deepseek_v3", "own.yaml", 8, 4096, 1024, "primus", ["cp=1", "tp=1", "micro_batch_size=2"]),
    "BF16 or FP8": ("llama3.1_70b", "h100", 16, 8192, 512, "megatron", ["cp=[1,4]", "tp=[1,2]", "vpp=1"]),
}
"""Questions of new users: model, hardware, nodes, length, batch, framework, and what narrows the space for a test."""
OWN_MODEL = {
    "model_type": "llama", "hidden_size": 7168, "intermediate_size": 20480, "num_hidden_layers": 60,
    "num_attention_heads": 56, "num_key_value_heads": 8, "vocab_size": 64000, "max_position_embeddings": 8192,
}  # fmt: skip
OWN_HARDWARE = """
name: MINE
extends: mi355x
accelerator:
  hbm_GiB: {value: 432, source: "data sheet"}
  hbm_GBps: {value: 19600, source: "data sheet"}
  bf16_peak_TFLOPS: {value: 10000, source: "data sheet"}
  fp8_peak_TFLOPS: {value: 20000, source: "data sheet"}
"""
ABBREVIATIONS = re.compile(r"\b(sf\d|mbs\d|zero1|via:|fp8:|graph:|layout:|recompute:|full\()|-gemm|…")
"""Short names of tables, and words that were cut: none of them on a first screen."""


@pytest.fixture(scope="module", params=SPACES)
def result(request: pytest.FixtureRequest) -> SearchResult:
    name, changes = SPACES[request.param]
    return search(load_space(name, overrides=["benchmark.device=off", *changes], environ={}))


def test_inside_the_noise_the_plainest_row_is_recommended(result: SearchResult) -> None:
    ranking = result.ranking
    fits = ranking.is_fit[:1000]
    rate = ranking.expected_rate[:1000]
    near = np.flatnonzero(fits & (rate >= rate[fits].max() * (1.0 - TIE)))
    rows = ranking.candidates.take(near)
    keys = list(zip(switches_of(rows), rows.fp8 != Fp8.NONE, num_dimensions(rows), -rate[near], strict=True))
    assert ranking.is_fit[0] and near[0] == 0
    assert keys[0] == min(keys)
    for place in near[:50].tolist():
        assert len(switch_names(ranking.row(place))) == switches_of(ranking.candidates.take(np.array([place])))[0]


def test_choices_are_different_ideas_that_fit_and_say_when_to_take_them(result: SearchResult) -> None:
    answer, rows = answer_of(result), result.ranked_rows
    assert [one.letter for one in answer.choices] == list("ABCDE")[: len(answer.choices)] and len(answer.choices) > 1
    assert answer.choices[0].rank == 1 and answer.rank_of("a") == 1 and answer.rank_of("z") is None
    ideas = set()
    for one in answer.choices:
        row = rows[one.rank - 1]
        assert one.rate == row[RATE] and one.when and one.what
        assert row["memory_verdict"] == FITS or "you free" in one.when
        ideas.add(
            (
                *(row[n] for n in ("tp", "pp", "ep", "etp", "fp8", "recompute", "schedule")),
                row["micro_batch_size"] / row["cp"],
                one.when == "measured kind",
            )
        )
    assert len(ideas) == len(answer.choices)
    others = [one.rate for one in answer.choices[1:]]
    assert others == sorted(others, reverse=True)


def test_beside_switches_that_no_run_had_together_stands_the_best_row_of_a_measured_kind(result: SearchResult) -> None:
    answer, rows = answer_of(result), result.ranked_rows
    table = Candidates.from_rows([{name: row[name] for name in COLUMN_NAMES} for row in rows])
    known = is_measured(result.best.ranking.job, table)
    beside = [
        row[RATE]
        for row, is_known in zip(rows, known, strict=True)
        if is_known and row["memory_verdict"] == FITS and number_format(row) == number_format(rows[0])
    ]
    picked = [one for one in answer.choices if one.when == "measured kind"]
    assert len(picked) == int(not known[0] and max(beside, default=0.0) >= SLOWEST * rows[0][RATE])
    assert all(known[one.rank - 1] and one.rate >= (1.0 - TIE) * max(beside) for one in picked)


def test_who_trains_in_bf16_finds_it_among_the_choices_however_slow(tmp_path: Path) -> None:
    """Of a 70B model on H200 BF16 reaches two thirds of FP8 per tensor: less than any other choice may have."""
    narrow = [word for name in ("tp", "pp", "cp", "micro_batch_size") for word in ("--set", f"{name}=1")]
    words = [
        "ask",
        "llama3.1_70b",
        "h200",
        "--nodes",
        "24",
        "--seq",
        "8192",
        "--batch",
        "768",
        "--bench",
        "off",
        *narrow,
    ]
    done = CliRunner().invoke(app, [*words, "--framework", "torchtitan@0.2.2", "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    answer = SavedRun.open(tmp_path / "run").answer
    (bf16,) = [one for one in answer.choices if one.when == "you train in BF16"]
    assert answer.number_format == "FP8" and bf16.what == "BF16" and bf16.change < -0.3


def test_the_screen_has_24_lines_of_80_columns_and_ends_with_commands(result: SearchResult) -> None:
    text = io.StringIO()
    print_result(result, stream=text)
    lines = text.getvalue().splitlines()
    assert len(lines) <= LINES and max(map(len, lines)) <= COLUMNS
    answer = answer_of(result)
    cluster = result.best.choice.cluster
    for told in (
        result.space.model.name,
        cluster.accelerator.name,
        result.best.choice.framework.title,
        cluster.stack.title,
    ):
        assert told in " ".join(lines[:2])
    assert f"{answer.rate:,.0f} tok/s/GPU" in text.getvalue()
    assert "primus-search export A" in lines[-2] and "report.html" in lines[-1]
    assert "+0%" not in text.getvalue()


def test_the_band_stays_on_a_screen_that_is_short_of_lines(result: SearchResult) -> None:
    answer = answer_of(result)
    full = replace(answer, notes=tuple(f"note {number} " + "word " * 24 for number in range(6)))
    lines = first_screen(full, "here")
    assert len(lines) <= LINES and any(line.startswith("TRUST 90 % band") for line in lines)


def test_every_choice_stands_on_a_screen_whose_words_have_no_room(result: SearchResult) -> None:
    answer = answer_of(result)
    words = "4 stages x 5 chunks, full recompute, dispatch without DeepEP, no sync-free stage, EP1"
    choices = tuple(replace(answer.choices[0], letter=letter, what=words, when="sequences grow") for letter in "ABCDE")
    lines = first_screen(replace(answer, choices=choices), "here")
    assert len(lines) <= LINES and max(map(len, lines)) <= COLUMNS
    assert [line[2] for line in lines if line[:2] == "  " and line[2:3].isalpha() and line[3:4] == " "] == [*"ABCDE"]
    assert "  E 4 stages x 5 chunks and 4 more" in "\n".join(lines)


@pytest.mark.parametrize("above", range(12))
def test_choices_without_room_under_a_table_are_counted(result: SearchResult, above: int) -> None:
    answer = answer_of(result)
    one = answer.choices[0]
    choices = tuple(
        replace(one, letter=letter, when=f"{one.when} " * (1 + place)) for place, letter in enumerate("ABCDE")
    )
    full = replace(answer, choices=choices, notes=("A note of one line.",) * 3)
    lines = first_screen(full, "here", above=above)
    assert len(lines) <= max(LINES - above, LEAST_LINES)
    shown = [line for line in lines if re.match(r" {2}[A-E] ", line)]
    left = [int(found[1]) for line in lines if (found := re.fullmatch(r" +(\d) more choices? on the page", line))]
    assert shown and len(shown) + sum(left) == len(choices) and len(left) == (len(shown) < len(choices))


def test_beside_a_row_at_risk_stands_the_fastest_that_fits(result: SearchResult) -> None:
    first, *others = result.ranked_rows
    rows = [{**first, "memory_verdict": AT_RISK}, *others]
    best = result.best
    answer = decide(
        result.space, best.ranking, rows, best.evaluator, counts="", several=len(result.clusters), remarks=()
    )
    (safe,) = [one for one in answer.choices if one.when == "A runs out of memory"]
    layers = result.space.model.num_layers
    fits = [
        one for one in others if one["memory_verdict"] == FITS and (one["vpp"] == 1 or one["pp"] * one["vpp"] < layers)
    ]
    assert safe.verdict == FITS and safe.rate == max(one[RATE] for one in fits)


@pytest.mark.in_turn
@pytest.mark.daily(1)
@pytest.mark.parametrize("case", CASES)
def test_a_first_screen_is_in_words_and_its_rate_is_that_of_every_surface(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own34b.json").write_text(json.dumps(OWN_MODEL))
    (tmp_path / "own.yaml").write_text(OWN_HARDWARE)
    model, hardware, *numbers, framework, narrow = CASES[case]
    nodes, length, batch = map(str, numbers)
    words = ["ask", model, hardware, "--nodes", nodes, "--seq", length, "--batch", batch, "--framework", framework]
    options = [word for one in narrow for word in ("--set", one)]
    done = CliRunner().invoke(app, [*words, *options, "--bench", "off", "--out", "run"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert len(lines) <= LINES and max(map(len, lines)) <= COLUMNS
    assert not ABBREVIATIONS.search(done.stdout), done.stdout
    answer = SavedRun.open(tmp_path / "run").answer
    rows = list(csv.DictReader((tmp_path / "run/ranking.csv").open()))
    notebook, page = load_run(tmp_path / "run"), (tmp_path / "run/report.html").read_text()
    explained = CliRunner().invoke(app, ["explain", "run", *(one.letter for one in answer.choices)]).stdout
    for one in answer.choices:
        shown = f"{one.rate:,.0f}"
        assert shown in done.stdout and shown in page and shown in explained and shown in notebook.answer
        assert float(rows[one.rank - 1][RATE]) == one.rate == notebook.ranking[RATE].iloc[one.rank - 1]


def test_work_is_a_share_of_the_peak_of_its_own_number_format(result: SearchResult) -> None:
    answer, first, device = answer_of(result), result.ranked_rows[0], result.best.choice.cluster.accelerator
    peak = device.bf16_peak_flops_per_s if first["fp8"] == "none" else device.fp8_peak_flops_per_s
    assert answer.number_format == ("BF16" if first["fp8"] == "none" else "FP8")
    flops = first["mfu"] * device.bf16_peak_flops_per_s * first[RATE] / first["tokens_per_s_per_gpu"]
    assert answer.peak_share == pytest.approx(flops / peak) and answer.peak_share < 0.8


def test_one_answer_on_terminal_page_notebook_and_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    words = ["run", "llama3_8b_mi300x", "--set", "cp=1", "--set", "pp=[1,2]", "--bench", "off", "--out", "here"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    saved = SavedRun.open(tmp_path / "here")
    screen = first_screen(saved.answer, "here")
    assert done.stdout.splitlines() == screen
    assert load_run(tmp_path / "here").answer.splitlines()[:-1] == screen[:-1]
    page = (tmp_path / "here" / "report.html").read_text()
    for one in saved.answer.choices:
        assert f"<b>{one.letter}</b>" in page and f"{one.rate:,.0f}" in page
    assert json.loads((tmp_path / "here/run.json").read_text())["answer"]["choices"][0]["letter"] == "A"


@pytest.mark.in_turn
def test_letters_and_the_last_run_are_understood_by_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def said(*words: str) -> Any:
        done = CliRunner().invoke(app, list(words))
        assert done.exit_code == 0, done.output
        return done.stdout

    assert "name a run folder" in str(CliRunner().invoke(app, ["explain"]).exception)
    said("run", "llama3_8b_mi300x", "--set", "cp=1", "--set", "pp=[1,2]", "--bench", "off", "--out", "here")
    saved = SavedRun.open(tmp_path / "here")
    second = saved.answer.choices[1]
    assert (
        list(json.loads(said("export", "B", "--json")))
        == [str(second.rank)]
        == list(json.loads(said("export", "here", "b", "--json")))
    )
    assert json.loads(said("explain", "B", "--json"))["rank"] == second.rank
    assert json.loads(said("explain", "--json"))["rank"] == 1
    assert json.loads(said("compare", "A", "B", "--json"))["figures"][RATE] == [saved.row(1)[RATE], second.rate]
    assert said("pareto", "--csv") == (tmp_path / "here" / "pareto.csv").read_text()
    refused = CliRunner().invoke(app, ["explain", "Z"])
    assert "neither a rank nor one of the choices" in str(refused.exception)


def test_words_of_a_row_say_how_it_is_split() -> None:
    space = make_space(
        {"model": "llama3_8b", "hardware": "h100", "nodes": 2, "framework": "torchtitan",
         "workload": {"seq_length": 8192, "global_batch_size": 64},
         "space": {"pp": 1, "tp": 1, "cp": 1, "sharding": "fsdp2", "recompute": "none", "fp8": "none",
                   "micro_batch_size": 1}}
    )  # fmt: skip
    row = search(replace(space, benchmark=replace(space.benchmark, device="off"))).ranked_rows[0]
    assert in_words(row).startswith(
        "FSDP over 16 GPUs, no tensor or pipeline parallel, micro-batch 1 (4 per step), no recompute, BF16"
    )


def test_a_run_constructs_one_projector_of_its_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for the search, its answer and its page; re-validation adds the one that measurements go into, the page's
    sliders those of other workloads and clusters."""
    space = load_space("llama3_8b_mi300x", overrides=["cp=1", "pp=[1,2]", "benchmark.device=off"], environ={})
    made = []
    begin = Projector.__init__

    def counted(self: Projector, job: Any, **options: Any) -> None:
        made.append(job)
        begin(self, job, **options)

    monkeypatch.setattr(Projector, "__init__", counted)
    search(space, out=tmp_path / "run")
    own = space.job_on(space.clusters[0])
    assert made.count(own) == 1
    explain(SavedRun.open(tmp_path / "run"), 1).figures  # noqa: B018 - a saved run makes its own
    assert made.count(own) == 2


@pytest.mark.in_turn
def test_a_question_without_a_file_writes_the_file_it_would_have_needed(tmp_path: Path) -> None:
    own = tmp_path / "own"
    words = [
        "ask",
        "llama3.1_8b",
        "h100",
        "--nodes",
        "1",
        "--seq",
        "4096",
        "--batch",
        "32",
        "--framework",
        "torchtitan",
    ]
    words += ["--set", "tp=[1,2]", "--set", "recompute=none", "--bench", "off"]
    done = CliRunner().invoke(app, [*words, "--out", str(own)])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("llama3.1_8b, 8.0 B | 8 H100 (1 x 8) | torchtitan")
    again = CliRunner().invoke(app, ["run", str(own / "space.yaml"), *words[-6:], "--out", str(tmp_path / "again")])
    assert again.exit_code == 0, again.output
    assert SavedRun.open(tmp_path / "again").ranking == SavedRun.open(own).ranking
    other = CliRunner().invoke(app, [*words[:-6], "--batch", "64", "--out", str(own)])
    assert "holds a run of another question" in str(other.exception)
    wrong = CliRunner().invoke(
        app, ["ask", "nosuch", "h100", "--nodes", "1", "--seq", "1", "--batch", "8", "--out", str(tmp_path / "no")]
    )
    assert "unknown model preset" in str(wrong.exception) and not (tmp_path / "no").exists()


@pytest.mark.in_turn
def test_a_present_configuration_stands_beside_the_choices(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ["run", "llama3_8b_mi300x", "--set", "cp=1", "--set", "pp=1", "--bench", "off"]
    assert CliRunner().invoke(app, [*words, "--out", str(folder)]).exit_code == 0
    assert CliRunner().invoke(app, ["export", str(folder), "60"]).exit_code == 0
    done = CliRunner().invoke(
        app, [*words, "--out", str(tmp_path / "b"), "--baseline", str(folder / "exports/60/primus.yaml")]
    )
    lines = done.stdout.splitlines()
    assert len(lines) <= LINES and max(map(len, lines[:-1])) <= COLUMNS  # the last one is the path of the page
    assert any(line.startswith("you ") for line in lines) and "behind" in done.stdout


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("tp=4,pp=2", {"tp": "4", "pp": "2"}),
        ("TP1 PP2x8 DP64 EP16 mbs4 interleaved layout:balanced deepep sf2 fp8:hybrid full(4) zero1",
         {"tp": "1", "pp": "2", "vpp": "8", "ep": "16", "micro_batch_size": "4", "schedule": "interleaved",
          "pipeline_layout": "balanced", "deepep": "true", "sync_free_stage": "2", "fp8": "hybrid",
          "recompute": "{full: 4}", "sharding": "distributed_optimizer"}),
        ("mbs=2, vpp=4 TP2", {"micro_batch_size": "2", "vpp": "4", "tp": "2"}),
        ("no deepep, BF16", {"deepep": "false", "fp8": "none"}),
        ("recompute=full(4)", {"recompute": "{full: 4}"}),
        ("pipeline_layout={first: 2, last: 2}", {"pipeline_layout": "{first: 2, last: 2}"}),
    ],
)  # fmt: skip
def test_words_as_printed_are_words_as_read(text: str, pairs: dict[str, str]) -> None:
    assert dict(pairs_of(text)) == pairs


def test_every_label_of_a_ranking_is_read_back(result: SearchResult) -> None:
    """`--why-not` with a row's own label asks about that very row."""
    choice = result.best.choice
    evaluator = Evaluator(result.space, choice)
    for place in range(0, len(result.ranked_rows), 97):
        row = result.ranked_rows[place]
        plain = {name: KNOB[name].word(KNOB[name].default) for name in COLUMN_NAMES} | {
            "sequence_parallel": row["sequence_parallel"]
        }
        base = values_of(
            Candidates.from_words(plain | {"pp": row["pp"], "vpp": row["vpp"], "schedule": row["schedule"]})
        )
        asked = parse_request(short(row), base, evaluator)
        named = {name: word(name, value) for name, value in {**base, **asked}.items()}
        differing = {name for name in COLUMN_NAMES if named[name] != row[name]}
        assert not differing - {"recompute_method"}, short(row)


def test_set_takes_words_of_the_tables(tmp_path: Path) -> None:
    words = ["run", "llama3_8b_mi300x", "--set", "TP2", "--set", "PP1", "--set", "recompute=full(4)", "--bench", "off"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    rows = SavedRun.open(tmp_path / "run").ranking
    assert {(row["tp"], row["pp"], row["recompute"], row["recompute_num_layers"]) for row in rows} == {
        (2, 1, "full", 4)
    }
