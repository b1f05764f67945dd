"""The rate of software that no file describes: a mixture over stacks, with the errors of a site around each."""

import numpy as np
import pytest

from primus_search.evidence.validate.undescribed import Undescribed, undescribed_mixtures
from primus_search.files.evidence_files import load_sites
from primus_search.files.hardware_files import load_cluster
from primus_search.learning.inference.hypotheses import shipped_hypotheses
from primus_search.learning.inference.projected_runs import Reference
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates
from primus_search.values.job import Job
from primus_search.values.workload import Workload


@pytest.mark.parametrize("name", ["llama3.1_8b", "mixtral_8x7b"])
def test_a_mixture_of_one_stack_has_the_band_of_the_site(name: str) -> None:
    model, site = load_model(name), load_sites().errors
    alone = Undescribed(weights=np.array([1.0]), logs=np.log([1000.0]), names=("only",))
    found = alone.rate(model, site)
    variance = site.site**2 + site.group**2 + site.configuration**2 + site.software**2
    half = site.quantile * np.sqrt(variance)
    assert np.log([found.low, found.rate, found.high]) == pytest.approx(
        np.log(1000.0) + half * np.array([-1, 0, 1]), abs=1e-3
    )


@pytest.mark.parametrize("replicating", ["internevo", "megatron_lm"])
def test_software_that_replicates_weights_counts_less_where_a_run_shards_them(replicating: str) -> None:
    """InternEvo's owners of a ZeRO-1 shard broadcast weights that every rank keeps: it is no software of FSDP."""

    def log_prior(suggested: str) -> float:
        found = shipped_hypotheses(suggested=suggested, archs=["sm80"])
        return max(one.log_prior for one in found if one.name == replicating)

    assert log_prior("torchtitan") == log_prior("megatron_te") - 2.0


@pytest.mark.parametrize("suggested", ["megatron_te", "megatron_lm", "torchtitan"])
def test_equals_of_the_suggested_stack_take_part(suggested: str) -> None:
    """A stack as likely as the suggested one but for the suggestion is in the mixture."""
    workload = Workload(seq_length=4096, global_batch_size=64)
    job = Job(model=load_model("llama3_8b"), cluster=load_cluster("h100", 1, suggested), workload=workload)
    [found] = undescribed_mixtures([Reference(job=job, table=Candidates.from_words({"tp": 1}))])
    every = shipped_hypotheses(suggested=suggested, archs={"sm90"}, models={job.model})
    first = next(one for one in every if one.name == suggested)
    equals = {one.stack.name for one in every if one.log_prior - first.log_prior >= -3.0 - 1e-9}
    assert len(equals) > 1 and equals <= set(found.names)
