"""What commands print with --json has the keys that `primus-search schema COMMAND` publishes, and no other."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from primus_search.cli import TABLE, app
from primus_search.cli.output_schema import OUTPUTS, commands, output_schema
from tests.exploration.test_folders_of_releases import unpacked

TABLES = Path(__file__).parents[1] / "oracle" / "data"
CASES = {
    "explain": ["explain {run} 1 --json", "explain {run} 1 2 --json", "explain {run} 1 --why-not tp=2 --json",
                "explain {old} 1 --what-if workload.global_batch_size=256 --json"],
    "project": ["project --row {run}/ranking.csv:2 --json",
                "project --model llama3_8b --hardware h100 --nodes 1 --set tp=8 --json"],
    "pareto": ["pareto {run} --json"],
    "next": ["next {run} --json"],
    "compare": ["compare {run} {run} --json", "compare {run} 1 2 --json"],
    "export": ["export {run} 1 --format torchtitan --out {out} --json"],
    "schedules": ["schedules --stages 2 --microbatches 4 --costs 1,1,1 --json"],
    "models": ["models --json", "models llama3_8b --json"],
    "hardware": ["hardware --json", "hardware h100 --json", "hardware torchtitan --json"],
    "doctor": ["doctor --json"],
    "validate": ["validate {tables}/measured_memory.csv --json"],
}  # fmt: skip
OPEN = ("models", "hardware")
"""Commands whose further keys are the fields of a file, not a list of ours."""


def printed(words: str, folder: Path) -> Any:
    """What a command prints, read back."""
    if "{old}" in words:
        unpacked("0.1.0", folder)
    given = words.format(run=folder / "0.2.0", old=folder / "0.1.0", out=folder / "out", tables=TABLES).split()
    found = CliRunner().invoke(app, given)
    assert found.exit_code in (0, 1), found.stderr
    return json.loads(found.stdout)


def undocumented(schema: dict[str, Any], data: Any) -> set[str]:
    """Keys of an output that its schema does not name."""
    inner = schema.get("anyOf", [schema])[0]
    inner = inner.get("items", inner)
    rows = data if isinstance(data, list) else [data]
    axes = set(output_schema("project")["$defs"]["candidate"]["properties"]) if "frontier" in str(schema) else set()
    return {key for row in rows for key in row} - set(inner["properties"]) - axes


@pytest.mark.parametrize("command", commands())
def test_every_schema_is_one(command: str) -> None:
    schema = output_schema(command)
    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:primus-search:{command}:{OUTPUTS}"


def test_every_command_with_json_has_a_schema() -> None:
    with_json = {name for name, row in TABLE.items() if {"json", "as_json"} & set(row)} - {"ask"}
    assert with_json <= set(commands())


@pytest.mark.daily(8)
@pytest.mark.parametrize(("command", "words"), [(name, one) for name, many in CASES.items() for one in many])
def test_outputs_are_as_their_schema_says(command: str, words: str, tmp_path: Path) -> None:
    unpacked("0.2.0", tmp_path)
    data, schema = printed(words, tmp_path), output_schema(command)
    assert [error.message[:200] for error in Draft202012Validator(schema).iter_errors(data)] == []
    if command not in (*OPEN, "export", "pareto"):
        assert undocumented(schema, data) == set()
    if isinstance(data, dict) and command != "export":
        assert data["schema"] == OUTPUTS


def test_run_json_is_as_its_schema_says(tmp_path: Path) -> None:
    facts = json.loads((unpacked("0.2.0", tmp_path) / "run.json").read_text())
    schema = output_schema("run")
    assert [error.message[:200] for error in Draft202012Validator(schema).iter_errors(facts)] == []
    assert undocumented(schema, facts) == set()


def test_one_candidate_has_one_name_and_its_parts_one_spelling(tmp_path: Path) -> None:
    unpacked("0.2.0", tmp_path)
    explained = printed("explain {run} 2 --json", tmp_path)
    projected = printed("project --row {run}/ranking.csv:2 --json", tmp_path)
    assert explained["candidate"] == projected["candidate"]
    assert explained["configuration"] == explained["candidate"]  # deprecated in 0.2.0
    assert list(explained["step"]) == list(projected["step"])
    assert list(explained["memory"]) == list(projected["memory"])
    picked = printed("next {run} --json", tmp_path)["picks"][0]["candidate"]
    assert set(picked) <= set(projected["candidate"])


def test_schema_of_a_command_is_printed_and_of_none_is_refused() -> None:
    found = CliRunner().invoke(app, ["schema", "run"])
    assert json.loads(found.stdout) == output_schema("run")
    assert json.loads(CliRunner().invoke(app, ["schema"]).stdout)["required"] == ["model", "hardware", "workload"]
    assert "did you mean 'project'" in str(CliRunner().invoke(app, ["schema", "projct"]).exception)
