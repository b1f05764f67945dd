"""What Megatron-Core's own loss functions hold of the logits, beside what the head is priced with."""

import pytest
import torch

from primus_search.cost.memory.logits import head_memory
from primus_search.cost.memory.share import Share
from primus_search.files.framework_files import load_framework
from primus_search.files.hardware_files import load_stack
from primus_search.launch.decided import decided_numbers
from primus_search.measure.trace import StorageWatch
from primus_search.values.candidates import DEFAULTS, Candidates
from primus_search.values.machine.stack import with_numbers
from primus_search.values.workload import Workload
from tests.cost.test_memory_formulas import LLAMA_70B

SEQ, VOCAB = 256, 16384


def held_bytes_per_logit() -> dict[bool, tuple[float, float]]:
    """Of the separate kernels and the fused one: bytes per logit at the worst moment, and from forward to backward."""
    import torch.distributed as dist
    from megatron.core import jit, parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    jit.disable_jit_fuser()
    from megatron.core.fusions.fused_cross_entropy import fused_vocab_parallel_cross_entropy
    from megatron.core.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy

    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    found, targets = dict[bool, tuple[float, float]](), torch.randint(0, VOCAB, (SEQ, 1))
    try:
        parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
        for is_fused in (False, True):
            hidden = torch.zeros(1, requires_grad=True)
            with StorageWatch(ignored=[hidden, targets]) as watch:
                logits = torch.ones(SEQ, 1, VOCAB, dtype=torch.bfloat16).add_(hidden.bfloat16())
                if is_fused:
                    loss = fused_vocab_parallel_cross_entropy(logits, targets, dist.group.WORLD)
                else:
                    loss = vocab_parallel_cross_entropy(logits, targets)
                del logits
                kept = watch.live_bytes()
                torch.autograd.backward(loss.sum(), inputs=[hidden])
            found[is_fused] = (watch.peak_bytes / (SEQ * VOCAB), kept / (SEQ * VOCAB))
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
    return found


@pytest.mark.in_turn
def test_megatrons_own_fused_loss_holds_the_softmax_as_separate_kernels_do() -> None:
    pytest.importorskip("megatron.core")
    measured = held_bytes_per_logit()
    for name in ("megatron", "megatron@core_0.16", "primus", "nemo"):
        for is_fused, held in measured.items():
            row = DEFAULTS | {"loss_fusion": is_fused}
            given = {"cross_entropy_loss_fusion": is_fused, "cross_entropy_fusion_impl": "native"}
            numbers = decided_numbers(load_framework(name).of_dense, row, given)
            assert numbers.get("keeps_softmax") is (True if is_fused else None)
            stack = with_numbers(load_stack("megatron_te"), numbers)
            table, work = Candidates.table(loss_fusion=is_fused), Workload(seq_length=SEQ, global_batch_size=8)
            head = head_memory(LLAMA_70B, stack, Share(LLAMA_70B, work, stack, table, 8))
            logits = SEQ * LLAMA_70B.vocab_size
            priced = ((head.kept_logits + head.running_logits)[0] / logits, head.kept_logits[0] / logits)
            assert priced == pytest.approx(held, rel=2e-3)
