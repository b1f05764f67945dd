"""Files and numbers from outside are bounded: how much is read, what a number may be, how far a word expands."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, BeforeValidator

from primus_search.base.errors import InputError
from primus_search.base.guards.files import cache_folder, expanded, read_bytes
from primus_search.declare import make_space
from primus_search.declare.space_schema import SpaceFile
from primus_search.files.search_path import FileKind, find, roots
from primus_search.values.layout import MAX_SIGNS, expand

BASE = {"model": "llama3_8b", "hardware": "h100", "workload": {"seq_length": 4096, "global_batch_size": 512}}
LIMIT = 100


def problem_of(**changes: object) -> str:
    with pytest.raises(InputError) as caught:
        make_space(BASE | changes)
    return str(caught.value)


def bounds(model: Any = SpaceFile, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every number of a space file that has a bound, and a value beyond it; amounts have words of their own."""
    for name, field in model.model_fields.items():
        is_amount = any(isinstance(one, BeforeValidator) for one in field.metadata)
        for one in () if is_amount else field.metadata:
            for kind, more in {"le": 1, "lt": 0, "ge": -1, "gt": 0}.items():
                if (limit := getattr(one, kind, None)) is not None:
                    yield (*path, name), limit + more
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from bounds(field.annotation, (*path, name))


@pytest.mark.parametrize(("path", "value"), list(bounds()))
def test_a_number_beyond_its_bound_is_refused_in_our_words(path: tuple[str, ...], value: float) -> None:
    given: Any = value
    for key in reversed(path[1:]):
        given = {key: given}
    section = BASE.get(path[0])
    where = ".".join(path)
    said = problem_of(**{path[0]: section | given if isinstance(section, dict) else given})
    assert re.search(rf"{re.escape(where)}: must be (?:at least|at most|above|below) ", said), said


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path, what in ((fifo, "FIFO"), (Path("/dev/zero"), "device"), (tmp_path, "is a folder")):
        with pytest.raises(InputError, match=what):
            read_bytes(path, most=LIMIT)


def test_the_limit_counts_bytes_read(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"x" * LIMIT)
    assert len(read_bytes(file, most=LIMIT)) == LIMIT
    file.write_bytes(b"x" * (LIMIT + 1))
    with pytest.raises(InputError, match="more than 100 bytes"):
        read_bytes(file, most=LIMIT)


@pytest.mark.parametrize("text", ["~nobody_of_this_name/x.yaml", "a\0b/x.yaml", "x" * 5000 + "/y.yaml"])
def test_paths_that_cannot_be_resolved_are_one_sentence(text: str) -> None:
    with pytest.raises(InputError):
        expanded(text)


def test_a_user_without_a_home_has_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", _no_home)
    assert cache_folder().name == "primus-search"


def _no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_a_deleted_working_folder_leaves_the_data_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.delenv("PRIMUS_SEARCH_HOME", raising=False)
    assert roots() != []
    assert isinstance(find(FileKind.MODEL, "llama3_8b"), Path)


@pytest.mark.parametrize(
    "text", ["Et*3000000000|tL", "(t*99999)*99999|tL", "Et*99999999999999999999|tL", "|".join(["t*9999"] * 9)]
)
def test_layout_strings_are_refused_before_they_are_expanded(text: str) -> None:
    started = time.process_time()
    with pytest.raises(ValueError, match=f"more than {MAX_SIGNS:,}"):
        expand(text)
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hardware.nic_GBps", float("nan")),
        ("hardware.bf16_peak_TFLOPS", 0),
        ("hardware.num_compute_units", 0),
        ("stack.gemm_efficiency", 0),
        ("stack.step_ms", float("inf")),
        ("stack.shard_overlap", 1.5),
    ],
)
def test_numbers_that_no_machine_has_are_refused(key: str, value: float) -> None:
    assert "must be" in problem_of(space={key: value})


@pytest.mark.parametrize("nodes", [1_000_000_000, 2**31, 2**80, 0])
def test_clusters_that_cannot_be_planned_are_refused_at_once(nodes: int) -> None:
    assert "$.nodes" in problem_of(nodes=nodes)


@pytest.mark.parametrize("axis", ["offload_layers", "shard_group", "tp", "micro_batch_size"])
def test_counts_beyond_any_machine_are_refused(axis: str) -> None:
    assert f"is not a value of {axis}" in problem_of(space={axis: 2**63})


def test_a_large_cluster_is_planned_in_seconds() -> None:
    started = time.process_time()
    make_space(BASE | {"nodes": 131_072, "workload": {"seq_length": 4096, "global_batch_size": 1 << 20}})
    assert time.process_time() - started < 10.0
