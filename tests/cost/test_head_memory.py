"""What the head and the loss hold of each micro-batch, and for how long."""

from dataclasses import replace

import pytest

from primus_search.cost.memory.chunk_memory import memory_by_rank
from primus_search.cost.memory.logits import head_memory
from primus_search.cost.memory.share import Share
from primus_search.cost.projection import Memory
from primus_search.files.hardware_files import load_stack
from primus_search.values.candidates import Candidates, Recompute, Sharding
from primus_search.values.job import Job
from primus_search.values.layout import BALANCED
from primus_search.values.machine.stack import with_numbers
from primus_search.values.workload import Workload
from tests.cost.test_memory_formulas import FLASH, LLAMA_70B, cluster

SEQ, VOCAB, HIDDEN = 4096, LLAMA_70B.vocab_size, LLAMA_70B.hidden


def last_rank(schedule: str, *, microbatches: int = 8, stack=FLASH, **columns) -> Memory:
    """Memory of eight stages on eight devices, rank by rank."""
    table = Candidates.table(schedules=(schedule,), layouts=(BALANCED,), pp=8, **columns)
    return memory_by_rank(
        Job(LLAMA_70B, cluster(1, stack), Workload(seq_length=SEQ, global_batch_size=microbatches)), table
    )


@pytest.mark.parametrize(("fused", "bytes_per_logit"), [(True, 2), (False, 4)])
def test_gpipe_keeps_what_the_loss_saved_of_every_micro_batch(fused: bool, bytes_per_logit: int) -> None:
    few, many = (last_rank("gpipe", microbatches=m, loss_fusion=fused).logits[-1] for m in (8, 12))
    assert many - few == pytest.approx(4 * bytes_per_logit * SEQ * VOCAB)


def test_1f1b_keeps_the_logits_of_one_micro_batch() -> None:
    few, many = (last_rank("1f1b", microbatches=m).logits[-1] for m in (8, 32))
    assert few == many == pytest.approx(2 * SEQ * VOCAB)


def test_the_gradient_of_the_logits_waits_where_weight_gradients_are_put_off() -> None:
    at_once, put_off = last_rank("1f1b"), last_rank("zb-2p")
    waiting = (put_off.logits[-1] - at_once.logits[-1]) / (2 * SEQ * VOCAB)
    assert waiting == round(waiting) and waiting >= 1


def test_once_layers_run_backward_the_head_holds_no_more_of_their_micro_batch() -> None:
    # All layers recomputed in one group: the worst moment of the last rank is that of its layers, not of its head.
    m = last_rank("1f1b", recompute=int(Recompute.FULL), recompute_num_layers=10, recompute_method=0)
    assert m.logits[-1] == 0.0


def test_an_outermost_group_of_fsdp_holds_embedding_and_head_all_the_time() -> None:
    columns = {"sharding": int(Sharding.FSDP2), "recompute": int(Recompute.NONE)}
    table = Candidates.table(layouts=(BALANCED,), **columns)
    work = Workload(seq_length=SEQ, global_batch_size=8)
    apart, joint = (
        memory_by_rank(
            Job(LLAMA_70B, cluster(1, with_numbers(FLASH, {"gathers_ends": ends})), work), table
        ).collective_buffers[0]
        for ends in (False, True)
    )
    # Embedding and head gathered in BF16, and the head's gradient until the embedding's joins it.
    assert joint - apart == pytest.approx(3 * 2 * VOCAB * HIDDEN)


def test_a_loss_in_pieces_holds_the_logits_of_one_and_the_gradient_of_its_whole_input() -> None:
    titan = load_stack("torchtitan")
    pieces = replace(titan, memory=replace(titan.memory, loss_chunks=8.0))
    work = Workload(seq_length=SEQ, global_batch_size=8)
    head = head_memory(LLAMA_70B, pieces, Share(LLAMA_70B, work, pieces, Candidates.table(loss_fusion=True), 8))
    assert head.running_logits[0] == SEQ * (6 * VOCAB / 8 + 4 * HIDDEN)
    assert head.kept_logits[0] == head.waiting_logits[0] == 0.0


@pytest.mark.parametrize(("fused", "whole", "split"), [(False, 14, 18), (True, 6, 12)])
def test_a_softmax_across_tensor_parallel_ranks_holds_more_per_logit(fused: bool, whole: int, split: int) -> None:
    # torchtitan: PyTorch's loss parallel builds its gradient from FP32 pieces, compiled or not.
    def per_logit(tp: int) -> float:
        table = Candidates.table(layouts=(BALANCED,), tp=tp, recompute=int(Recompute.FULL), loss_fusion=fused)
        work = Workload(seq_length=16 * SEQ, global_batch_size=8)
        m = memory_by_rank(Job(LLAMA_70B, cluster(1, load_stack("torchtitan")), work), table)
        return float(m.logits[0]) / (16 * SEQ * VOCAB / tp)

    assert (per_logit(1), per_logit(8)) == (pytest.approx(whole), pytest.approx(split))
