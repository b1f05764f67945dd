"""Results carry what is printed: a run constructs a projector per cluster for its search, and none to print."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from primus_search.cli import app
from primus_search.cost.project import Projector
from primus_search.declare import load_space
from primus_search.values.job import Job

NARROW = ["benchmark.top_k=2", "pp=[1,2]", "cp=1", "tp=[1,2]", "fp8=[none]", "sharding=distributed_optimizer"]


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("mode", "nodes", "most"),
    [("off", "1", 1), ("off", "1,2", 2), pytest.param("trace", "1", 2, id="one more to re-validate")],
)
def test_projectors_of_a_run(mode: str, nodes: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Advice on the page projects on machines that the space does not have; these are no second look at its own."""
    made, construct = list[Job](), Projector.__init__

    def counted(self: Projector, job: Job, *args: object, **options: object) -> None:
        made.append(job)
        construct(self, job, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Projector, "__init__", counted)
    sets = [word for one in NARROW for word in ("--set", one)]
    words = ["run", "llama3_8b_mi300x", "--nodes", nodes, "--bench", mode, *sets, "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    space = load_space("llama3_8b_mi300x", overrides=[f"nodes=[{nodes}]", *NARROW], environ={})
    own = [job for job in made if job in [space.job_on(choice) for choice in space.clusters]]
    assert len(space.clusters) <= len(own) <= most
