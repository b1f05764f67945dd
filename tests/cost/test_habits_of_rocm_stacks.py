"""What stacks on ROCm do differently: kernels of latent heads, ragged exchanges, host and device in a race."""

import numpy as np
import pytest

from primus_search.cost.parts.mixer_operations import attention_family
from primus_search.cost.stage import race_s
from primus_search.cost.traffic.expert_parallel import exchange_s
from primus_search.files.hardware_files import load_hardware, load_stack
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates
from primus_search.values.machine.stack import with_numbers
from primus_search.values.model import MixtureOfExperts

MI355X = load_hardware("mi355x")
LATENT, PLAIN = load_model("deepseek_v2_lite"), load_model("llama3_8b")


def test_latent_heads_take_the_kernel_that_a_stack_names_for_them() -> None:
    acc = MI355X.accelerator
    stack = with_numbers(load_stack("primus_megatron"), {"latent_attention_kernel": "ck"})
    assert attention_family(acc, stack, LATENT) == "ck"
    assert attention_family(acc, stack, PLAIN) == "aiter"
    assert attention_family(acc, with_numbers(stack, {"latent_attention_kernel": ""}), LATENT) == "aiter"
    assert attention_family(acc, with_numbers(stack, {"attention_kernel": "unfused"}), LATENT) == "unfused"


@pytest.mark.parametrize("power", [1.0, 3.0, 50.0])
def test_a_race_takes_between_the_longer_and_the_sum_of_both(power: float) -> None:
    host, device = np.array([0.0, 1.0, 1.0, 0.0]), np.array([2.0, 1.0, 0.5, 0.0])
    found = race_s(host, device, power)
    assert np.all(found >= np.maximum(host, device) * (1 - 1e-12)) and np.all(found <= (host + device) * (1 + 1e-12))
    assert race_s(host, device, 1.0) == pytest.approx(host + device)
    assert np.array_equal(race_s(host, device, 0.0), np.maximum(host, device))


def test_unequal_pieces_travel_slower_where_they_leave_a_domain() -> None:
    moe = MixtureOfExperts(num_experts=64, top_k=4, expert_ffn_hidden=1024)
    c = Candidates.table(ep=[8, 32])
    tokens, row = np.full(2, 8192.0), np.full(2, 4096.0)
    even, ragged = (exchange_s(MI355X.network, moe, tokens, row, c, ragged_share=share) for share in (1.0, 0.5))
    assert ragged / even == pytest.approx([1.0, 2.0])
