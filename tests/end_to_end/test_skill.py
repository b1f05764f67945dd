"""The skill for agents: its ten questions are answered by its commands, and its pages exist."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from primus_search.cli import COMMANDS, app

ROOT = Path(__file__).parents[2]
SKILL = ROOT / "skills" / "primus-search"
TASKS = yaml.safe_load((SKILL / "tasks.yaml").read_text())


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all questions: later ones ask about the run of an earlier one."""
    return tmp_path_factory.mktemp("skill")


def at(found: Any, path: str) -> Any:
    for part in path.split("."):
        found = found[int(part) if isinstance(found, list) else part]
    return found


@pytest.mark.in_turn
def test_every_question_is_answered_by_its_commands(out: Path) -> None:
    assert len(TASKS) == 10
    for task in TASKS:
        before = set(out.rglob("*"))
        for command in task["run"]:
            done = CliRunner().invoke(app, [word.format(out=out) for word in shlex.split(command)])
            assert done.exit_code == 0, (command, done.output)
        written = {path.name for path in set(out.rglob("*")) - before}
        assert set(task.get("files", ())) <= written, task["ask"]
        if "at" in task:
            answer = at(json.loads(done.stdout), task["at"])
            assert answer == task["is"] if "is" in task else task["within"][0] <= answer <= task["within"][1], (
                task["ask"], answer,
            )  # fmt: skip


def test_the_skill_names_commands_that_exist_and_says_when_to_use_it() -> None:
    head, body = re.fullmatch(r"---\n(.*?)\n---\n(.*)", (SKILL / "SKILL.md").read_text(), re.S).groups()  # type: ignore[union-attr]
    facts = yaml.safe_load(head)
    assert facts["name"] == SKILL.name
    assert 50 <= len(facts["description"]) <= 1024
    assert len(body.splitlines()) < 500
    assert set(re.findall(r"primus-search ([a-z]+)", body)) <= set(COMMANDS)


def test_every_page_that_llms_txt_links_exists() -> None:
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "llms.txt").read_text())
    assert len(links) >= 8
    assert [link for link in links if not (ROOT / link).is_file()] == []
