"""Every setting that a framework's own parser or class takes has a verdict: read, not priced, or without effect."""

import importlib.util
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.support.judge.checkouts import needs, sources
from tools.setting_verdicts import verdicts

MEGATRONS = ("megatron@core_0.20", "megatron@core_0.16")
LEAST = {"megatron": 700, "primus": 700, "torchtitan": 100}
"""Settings that the sources have at least; fewer means that they were not found."""
DIRECTIONS = ("slower", "faster", "more memory", "less memory", "less or more memory")
KEYS = Path(__file__).parents[2] / "spaces" / "keys"


def installed(package: str) -> Path | None:
    found = importlib.util.find_spec(package) if importlib.util.find_spec(package.partition(".")[0]) else None
    return Path(next(iter(found.submodule_search_locations))).parent if found else None


@pytest.mark.parametrize(
    ("name", "release"),
    [pytest.param(one.partition("@")[0], one, marks=needs(one)) for one in (*MEGATRONS, "primus", "torchtitan@0.3.0")],
)
def test_every_setting_of_a_client_has_a_verdict(name: str, release: str) -> None:
    found = verdicts(name, sources(release))
    assert len(found) >= LEAST[name]
    assert [key for key, kind in found.items() if not kind] == []


@pytest.mark.parametrize(
    ("name", "package", "least"),
    [("torchtitan@0.2.2", "torchtitan", 140), ("nemo", "megatron.core", 300), ("nemo", "megatron.bridge", 250)],
)
def test_every_setting_of_an_installed_framework_has_a_verdict(name: str, package: str, least: int) -> None:
    root = installed(package)
    if root is None:
        pytest.skip(f"{package} is not installed")
    found = verdicts(name, root.parent if name == "nemo" else root)
    assert len(found) >= least
    assert [key for key, kind in found.items() if not kind] == []


@pytest.mark.parametrize("name", ["megatron", "torchtitan"])
def test_each_key_has_one_verdict_with_a_direction_or_a_reason(name: str) -> None:
    table = yaml.safe_load((KEYS / f"{name}.yaml").read_text())
    listed = [key for group in (*table["not_priced"], *table["irrelevant"]) for key in group["keys"]]
    assert sorted(listed) == sorted(set(listed))
    assert all(group["effect"].startswith(DIRECTIONS) for group in table["not_priced"])
    assert all(group["reason"] for group in table["irrelevant"])
    assert set(table["priced"]) <= {key for group in table["not_priced"] for key in group["keys"]}


@pytest.mark.parametrize(
    ("name", "release"),
    [pytest.param(one.partition("@")[0], one, marks=needs(one)) for one in (MEGATRONS[0], "primus")],
)
def test_the_page_has_the_counts_of_the_clients(name: str, release: str) -> None:
    kinds = Counter(verdicts(name, sources(release)).values())
    page = " ".join((Path(__file__).parents[2] / "docs" / "dev" / "adding.md").read_text().split())
    assert f"{name} {kinds['read']}/{kinds['not priced']}/{kinds['cannot matter']}" in page
