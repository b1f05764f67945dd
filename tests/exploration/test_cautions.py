"""What a framework takes and was reported to fail is said of a row, and the row stays legal."""

import pytest

from primus_search.analysis.answer import answer_of
from primus_search.base.errors import InputError
from primus_search.declare import make_space
from primus_search.exploration.funnel import Options, run_search
from primus_search.exploration.neighbours import Evaluator, values_of
from primus_search.exploration.result import SearchResult
from primus_search.launch.write.job import LaunchJob
from primus_search.launch.write.nemo import files
from primus_search.space.rules import RULES


def searched(hardware: str, ep: int, **axes: object) -> SearchResult:
    row = {"tp": 1, "pp": 1, "cp": 1, "ep": ep, "deepep": True, "recompute": "full", "fp8": "none"}
    space = {"model": "nemotron3_super", "hardware": hardware, "nodes": 16 if hardware == "gb200" else 8}
    workload = {"seq_length": 4096, "global_batch_size": 512}
    rest = {"framework": "nemo", "workload": workload, "benchmark": {"device": "off"}}
    return run_search(make_space(space | rest | {"space": row | axes}), Options(workers=1))


@pytest.mark.parametrize(("hardware", "ep", "is_said"), [("b200", 64, True), ("b200", 8, False), ("gb200", 64, False)])
def test_hybridep_over_several_domains_is_cautioned(hardware: str, ep: int, is_said: bool) -> None:
    result = searched(hardware, ep, dispatch_backend="hybridep")
    assert any("several NVLink domains" in note for note in answer_of(result).notes) == is_said
    found = result.clusters[0]
    evaluator = Evaluator(result.space, found.choice)
    assert bool(evaluator.cautions(values_of(found.ranking.candidates, 0))) == is_said
    job = LaunchJob.of(result.space, found.choice, found.ranking.candidates.take(slice(0, 1)))
    assert f"HYBRID_EP_RANKS_PER_NVLINK_DOMAIN={min(ep, 8 if hardware == 'b200' else 72)}\n" in files(job)["nemo.sh"]()


def test_rules_that_drop_doubles_are_blamed_last() -> None:
    with pytest.raises(InputError) as caught:
        searched("gb200", 64, dispatch_backend="deepep")
    doubles = {rule.name for rule in RULES if rule.drops_doubles}
    names = [line.split()[0] for line in str(caught.value).splitlines()[1:]]
    blamed = [name in doubles or name.endswith("_idle") for name in names]
    assert blamed == sorted(blamed) and not blamed[0] and blamed[-1]
