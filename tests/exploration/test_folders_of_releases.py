"""Run folders of every released form are read by this version, or refused in one line that names their version.

tests/exploration/data/run_of_VERSION.tar.xz: one small run a release, as that release wrote it (its report left out). A
type that gets a field without a default makes these tests fail: give it a default, or a line in `resolved.MISSING`.
"""

import hashlib
import json
import os
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from primus_search import load_space
from primus_search.base.errors import InputError
from primus_search.base.version import __version__
from primus_search.cli import app
from primus_search.exploration.run_folder import resolved, saved_run
from primus_search.exploration.run_folder.question import fingerprint
from primus_search.exploration.run_folder.resolved import RESOLVED, SCHEMA, read_resolved, resolved_bytes
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.files.evidence_files import load_ranges, load_sites, load_switches
from primus_search.files.search_path import FileKind, names
from primus_search.files.snapshot import Snapshot

DATA = Path(__file__).parent / "data"
RELEASES = sorted(path.name.removeprefix("run_of_").removesuffix(".tar.xz") for path in DATA.glob("run_of_*"))
FORMATS = {"0.1.0": "megatron", "0.2.0": "torchtitan"}


def unpacked(release: str, folder: Path) -> Path:
    """The run folder that a release wrote."""
    with tarfile.open(DATA / f"run_of_{release}.tar.xz") as archive:
        archive.extractall(folder / release, filter="data")
    return folder / release


def output(*words: str | Path) -> tuple[int, str, str]:
    """Exit code and what a command prints on its two streams."""
    found = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=True)
    refused = f"{found.exception}\n" if isinstance(found.exception, InputError) else ""
    return found.exit_code, found.stdout, found.stderr + refused


def with_facts(folder: Path, **changes: Any) -> Path:
    """The folder with other values in run.json; None removes a key."""
    file = folder / "run.json"
    facts = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in facts.items() if value is not None}))
    return folder


def with_text(folder: Path, ending: str, text: str) -> Path:
    """The folder of 0.1.0 with a line more in one of the texts that it was given."""
    index = json.loads((folder / "inputs/index.json").read_text())
    for name in index["files"]:
        if name.endswith(ending):
            path = folder / "inputs" / name.lstrip("/")
            path.write_text(path.read_text() + text)
            index["files"][name] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "inputs/index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture(autouse=True)
def as_a_command() -> None:
    """Evidence is read anew, as by a command that opens a folder first."""
    for load in (load_ranges, load_sites, load_switches):
        load.cache_clear()


@pytest.mark.daily(1)
@pytest.mark.parametrize("release", RELEASES)
def test_every_reader_opens_the_folder_of_a_release(release: str, tmp_path: Path) -> None:
    folder, out = unpacked(release, tmp_path), tmp_path / "out"
    commands = [
        ("explain", folder, "A"),
        ("explain", folder, "2", "--json"),
        ("export", folder, "1", "--format", FORMATS[release], "--out", out),
        ("next", folder),
        ("pareto", folder),
        ("project", "--row", f"{folder}/ranking.csv:2"),
        ("compare", folder, folder),
    ]
    for words in commands:
        code, _, errors = output(*words)
        assert code == 0, (words, errors)
    assert list(out.rglob("*"))


def test_a_folder_of_another_version_says_so(tmp_path: Path) -> None:
    code, _, errors = output("pareto", unpacked("0.1.0", tmp_path))
    assert code == 0
    assert (
        f"written by primus-search 0.1.0 on 2026-11-27; what is projected anew is projected as {__version__}" in errors
    )


@pytest.mark.parametrize("words", [["explain"], ["next"], ["export", "--format", "megatron", "--out", "out"]])
def test_a_folder_whose_texts_no_longer_load_is_refused_in_one_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = with_text(unpacked("0.1.0", tmp_path), "llama3_8b.yaml", "num_heads_of_the_past: 3\nanother: 4\n")
    code, _, errors = output(words[0], folder, *(["1"] if words[0] == "export" else []), *words[1:])
    lines = errors.strip().splitlines()
    assert code
    assert len(lines) == 1
    assert "written by primus-search 0.1.0 on 2026-11-27, which this version" in lines[0]
    assert lines[0].endswith("run the search again (with --force)")


def test_a_run_json_of_another_version_without_keys_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = with_facts(unpacked("0.1.0", tmp_path), stack=None, memory_margin=None, clusters=None)
    with pytest.raises(InputError) as caught:
        SavedRun.open(folder)
    assert "\n" not in str(caught.value)
    assert "written by primus-search 0.1.0" in str(caught.value)


def test_a_folder_of_a_later_form_names_its_version(tmp_path: Path) -> None:
    folder = with_facts(unpacked("0.2.0", tmp_path), schema=SCHEMA + 1, versions={"primus-search": "9.0.0"})
    with pytest.raises(InputError) as caught:
        SavedRun.open(folder)
    assert "\n" not in str(caught.value)
    assert "written by primus-search 9.0.0" in str(caught.value)
    assert f"in schema {SCHEMA + 1}; this is {__version__}, which reads up to schema {SCHEMA}" in str(caught.value)


@pytest.mark.daily(5)
@pytest.mark.parametrize("name", sorted(names(FileKind.SPACE)))
def test_a_shipped_space_is_the_same_read_back(name: str, tmp_path: Path) -> None:
    try:
        space = load_space(name, environ={})
    except InputError as error:
        pytest.skip(str(error)[:80])
    again = read_resolved(tmp_path, resolved_bytes(space))
    assert again == space
    assert fingerprint(read_resolved(tmp_path, resolved_bytes(again))) == fingerprint(again)


def test_fields_and_axes_that_a_version_lacks_are_neutral_and_those_it_had_more_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = load_space("mixtral_8x22b_mi355x", nodes=4, environ={})
    data = json.loads(resolved_bytes(space))
    stack = data["parts"][data["space"]["clusters"][0]["cluster"]["stack"]]
    del stack["efficiencies"]["offload_efficiency"]
    stack["efficiencies"]["number_of_the_past"] = 3.0
    cluster = data["space"]["clusters"][0]
    cluster["axes"] = [one for one in cluster["axes"] if one["name"] != "optimizer_offload"]
    cluster["axes"].append({"name": "axis_of_the_past", "values": [1]})
    content = json.dumps(data).encode()
    with pytest.raises(InputError, match="offload_efficiency"):
        read_resolved(tmp_path, content)
    place = "clusters.*.cluster.stack.efficiencies"
    monkeypatch.setattr(resolved, "MISSING", {place: {"offload_efficiency": 1.0}})
    again = read_resolved(tmp_path, content)
    assert again.cluster.stack.efficiencies.offload_efficiency == 1.0
    assert again.axis("optimizer_offload").values == (0,)
    assert again.model == space.model


def test_a_folder_without_its_texts_is_explained(tmp_path: Path) -> None:
    folder = unpacked("0.2.0", tmp_path)
    assert not (folder / "inputs").exists()
    run = SavedRun.open(folder)
    assert run.space.model.name == "llama3_8b"
    assert [one.cluster.num_nodes for one in run.space.clusters] == [1, 2]


def test_a_damaged_resolved_space_is_refused_by_its_file(tmp_path: Path) -> None:
    folder = unpacked("0.2.0", tmp_path)
    (folder / RESOLVED).write_bytes((folder / RESOLVED).read_bytes()[:-9])
    with pytest.raises(InputError, match=rf"{RESOLVED}: is not what the run wrote"):
        _ = SavedRun.open(folder).space


def test_the_scaling_table_stands_in_run_json() -> None:
    with tarfile.open(DATA / "run_of_0.2.0.tar.xz") as archive:
        member = archive.extractfile("run.json")
        assert member is not None
        facts = json.loads(member.read())
    assert facts["schema"] == 1
    assert facts["token_budget"] == 1e12
    assert [row["nodes"] for row in facts["scaling"]] == [1, 2]
    assert all(row["days"] > 0 and "goodput" in row and "cost_USD" in row for row in facts["scaling"])


def test_the_last_run_is_found_whatever_bytes_its_folder_is_named_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xff\xc3\xa9"))
    unpacked("0.2.0", tmp_path).rename(folder)
    saved_run.remember(folder)
    assert saved_run.last_run() == folder.resolve()
    saved_run._pointer().write_bytes(b"\x00\xff")
    with pytest.raises(InputError, match="no run was made in this folder"):
        saved_run.last_run()


def test_an_answer_of_another_version_with_further_keys_is_read(tmp_path: Path) -> None:
    folder = unpacked("0.2.0", tmp_path)
    answer = json.loads((folder / "run.json").read_text())["answer"]
    answer["word_of_the_future"] = 1
    answer["choices"][0]["another"] = [2]
    run = SavedRun.open(with_facts(folder, answer=answer))
    assert run.rank_named("A") == 1
    assert replace(run.answer) == run.answer


def test_own_runs_of_a_learned_stack_are_those_that_the_folder_keeps(tmp_path: Path) -> None:
    run = SavedRun.open(unpacked("0.2.0", tmp_path))
    gone = "/gone/mine.runs.parquet"
    run.__dict__["inputs"] = Snapshot(
        texts={gone: b""}, source="/s.yaml", roots=(), sites="/s", folder=tmp_path / "inputs"
    )
    choice = run.space.clusters[0]
    stack = replace(choice.cluster.stack, runs_file=gone)
    space = replace(run.space, clusters=(replace(choice, cluster=replace(choice.cluster, stack=stack)),))
    assert run._with_kept_runs(space).cluster.stack.runs_file == str(tmp_path / "inputs/gone/mine.runs.parquet")


@pytest.mark.parametrize("entry", [1.5, None, {}, {"bytes": "12", "sha256": ""}, {"bytes": 12}])
def test_a_file_that_run_json_does_not_describe_is_refused_by_its_key(entry: Any, tmp_path: Path) -> None:
    folder = unpacked("0.2.0", tmp_path)
    files = json.loads((folder / "run.json").read_text())["files"]
    code, _, errors = output("explain", with_facts(folder, files=files | {RESOLVED: entry}))
    assert code and f"$.files.{RESOLVED}" in errors


@pytest.mark.parametrize(("column", "becomes"), [("vpp", "tp"), ("pp", "pp_")])
def test_a_table_with_other_columns_is_refused(column: str, becomes: str, tmp_path: Path) -> None:
    folder = unpacked("0.2.0", tmp_path)
    header, _, rows = (folder / "ranking.csv").read_text().partition("\n")
    words = [becomes if word == column else word for word in header.split(",")]
    text = ",".join(words) + "\n" + (rows if becomes == "tp" else rows.replace(",1,", ",0,"))
    (folder / "ranking.csv").write_text(text)
    files = json.loads((folder / "run.json").read_text())["files"]
    facts = {"bytes": len(text.encode()), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    code, _, errors = output("next", with_facts(folder, files=files | {"ranking.csv": facts}))
    assert code and "cannot be read back" in errors
