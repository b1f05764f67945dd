"""The rate of software that no file describes: a mixture over stacks, with the errors of a site around each."""

import numpy as np
import pytest
from scipy.special import stdtrit

from primus_search.evidence.validate.undescribed import Undescribed
from primus_search.files.evidence_files import load_sites
from primus_search.learning.hypotheses import shipped_hypotheses
from primus_search.models.model_files import load_model


@pytest.mark.parametrize("name", ["llama3.1_8b", "mixtral_8x7b"])
def test_a_mixture_of_one_stack_has_the_band_of_the_sites_students_t(name: str) -> None:
    model, site = load_model(name), load_sites().errors
    alone = Undescribed(weights=np.array([1.0]), logs=np.log([1000.0]), names=("only",))
    found = alone.rate(model, site)
    variance = site.site**2 + site.group**2 + site.configuration**2 + site.software**2
    scale = np.sqrt(variance) * (site.moe_factor if model.is_moe else 1.0)
    half = stdtrit(5, 0.95) * scale
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
