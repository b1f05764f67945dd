"""Tables of arguments: one line an argument, known types, and what the framework's own parser or classes give."""

import dataclasses
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.judge.checkouts import checkout, missing
from tests.support.random_scripts import table
from tools.argument_tables import FOLDER, TABLES, UNKNOWN, own_files

LEAST = {"megatron@core_0.20": 830, "megatron@core_0.16": 660, "primus": 830, "nemo": 790}
KINDS: dict[str, tuple[type, ...]] = {"flag": (bool,), "int": (int,), "float": (int, float)}
"""Of the others: a list argument may have one value for all."""

TYPES = ("flag", "int", "float", "str", "list", "list[int]", "list[float]", "pattern", "table")


@pytest.mark.parametrize("release", TABLES)
def test_every_argument_has_one_line_with_a_known_type_and_a_default_of_it(release: str) -> None:
    lines = (FOLDER / f"{release}.tsv").read_text().splitlines()
    names = [line.split("\t")[0] for line in lines if not line.startswith("#")]
    assert names == sorted(set(names))
    assert len(names) >= LEAST.get(release, 115)
    assert TABLES[release]["commit"] in lines[0] and str(TABLES[release]["date"]) in lines[0]
    for name, kind, default, choices, _ in table(release).values():
        assert kind in TYPES, name
        if not default.startswith(UNKNOWN):
            value = json.loads(default)
            assert value is None or isinstance(value, KINDS.get(kind, (object,))), name
        assert not choices or isinstance(json.loads(choices), list), name


@pytest.mark.parametrize("release", ["megatron@core_0.20", "megatron@core_0.16"])
def test_a_spelling_names_one_argument_and_either_turns_it_on_or_off(release: str) -> None:
    spellings = [one for row in table(release).values() for one in row[4].split()]
    assert len({one.removeprefix("!") for one in spellings}) == len(spellings)
    assert all(one.removeprefix("!").startswith("-") for one in spellings)


def test_megatron_accumulates_in_fp32_by_a_check_and_offloads_all_by_default() -> None:
    rows = table("megatron@core_0.20")
    assert rows["accumulate_allreduce_grads_in_fp32"][2] == "false"
    assert rows["optimizer_offload_fraction"][2] == "1.0"
    assert "!--no-overlap-p2p-communication" in rows["overlap_p2p_comm"][4]


def test_torchtitans_table_is_what_its_own_class_holds() -> None:
    pytest.importorskip("tyro")
    from tests.support.judge.installed import torchtitan

    torchtitan()
    job = importlib.import_module("torchtitan.config.job_config").JobConfig()
    rows = table("torchtitan@0.2.2")
    held = dict(_leaves(job, ""))
    assert set(held) == set(rows)
    known = {name: row[2] for name, row in rows.items() if not row[2].startswith(UNKNOWN)}
    assert {name: json.loads(json.dumps(held[name])) for name in known} == {n: json.loads(v) for n, v in known.items()}


def _leaves(value: Any, prefix: str) -> Any:
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        if dataclasses.is_dataclass(inner):
            yield from _leaves(inner, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", inner


@pytest.mark.parametrize("release", ["torchtitan@0.3.0", "torchtitan@main", "nemo", "megatron@core_0.20"])
def test_the_tool_writes_the_table_again(release: str) -> None:
    home = checkout(release)
    if home is None:
        pytest.skip(missing(release))
    code = "import sys; from pathlib import Path; from tools.argument_tables import table, text\n"
    code += "name = sys.argv[1]; sys.stdout.write(text(name, table(name, Path(sys.argv[2]))))"
    command = [sys.executable, "-W", "ignore", "-c", code, release, str(home.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert done.stdout.splitlines() == (FOLDER / f"{release}.tsv").read_text().splitlines()


def test_the_tool_writes_the_files_of_primus_again() -> None:
    home = checkout("primus")
    if home is None:
        pytest.skip(missing("primus"))
    assert own_files(home) == (FOLDER.parent / "primus_files.tsv").read_text()
