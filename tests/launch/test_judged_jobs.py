"""Random jobs of each framework: its own checks accept every file, and every file reads back as its job."""

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest

from primus_search.launch.write.job import Inexpressible
from tests.launch.test_launch_files import JUDGED, contract_of
from tests.launch.test_round_trip import differences, main_file
from tests.support.judge.checkouts import needs, sources
from tests.support.launched import verdicts
from tests.support.random_jobs import RandomJob, random_jobs

COUNT, FIRST = 400, 202_000
"""Jobs of each release, and the number of the space that they begin with."""
NOT_BUILT = {"minimax_m3": "no class of transformers 5.23", "glm5.2": "its class lost indexer_rope_interleave",
             "gemma4_26b_a4b": "reads num_key_value_heads of all layers, which differ"}  # fmt: skip
"""Models whose configuration on the hub the Bridge that judges cannot take from transformers 5.23."""
RELEASES = [*JUDGED, pytest.param("nemo@26.08", "nemo", marks=needs("nemo@26.08"))]


def recipes_in(judge: str) -> set[str]:
    """Recipes of the release of Megatron-Bridge that judges; the table has newer ones."""
    files = sources(judge).glob("src/megatron/bridge/*recipes/**/*.py") if judge.startswith("nemo") else ()
    return {name for file in files for name in re.findall(r"\b\w+_config\b", file.read_text(encoding="utf-8"))}


def written_jobs(judge: str, folder: Path, first: int) -> Iterator[tuple[Path, str]]:
    """Endless launch files of random jobs, each with its model and what comes back otherwise than it was written."""
    contract, named = contract_of(judge), recipes_in(judge)

    def is_judged(drawn: RandomJob) -> bool:
        """Models of towers are no presets, whose configurations stand in for the hub's."""
        is_built = not drawn.model and drawn.job.model.name not in NOT_BUILT
        return not drawn.recipe or (is_built and f"{drawn.recipe}_config" in named)

    for number, drawn in enumerate(filter(is_judged, random_jobs(contract, folder, first))):
        own = folder / str(number)
        own.mkdir()
        with suppress(Inexpressible), pytest.MonkeyPatch.context() as environment:
            environment.setenv("BRIDGE_PATH", "/opt/bridge")
            environment.setenv("RECIPE", f"{drawn.recipe}_config")
            lost = differences(drawn, own)
            main = own / main_file(drawn.job)
            if drawn.recipe and not drawn.job.recipe:  # a person names it
                text = main.read_text(encoding="utf-8")
                main.write_text(text.replace("set -euo", f"RECIPE={drawn.recipe}_config\nset -euo", 1))
            yield main, f"{drawn.job.model.name} {', '.join(lost)}"


@pytest.mark.full
@pytest.mark.parametrize(("judge", "framework"), RELEASES)
def test_frameworks_accept_random_jobs(judge: str, framework: str, tmp_path: Path) -> None:
    assert judge.startswith(framework)
    found = dict(islice(written_jobs(judge, tmp_path, FIRST), COUNT))
    lost = [f"{file}: {one}" for file, one in found.items() if one.partition(" ")[2]]
    refused = [one for one in verdicts(judge, list(found)) if not one["accepted"]]
    assert (lost, refused) == ([], [])
