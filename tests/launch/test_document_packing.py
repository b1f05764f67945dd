"""Packing in launch files: what each launcher's file asks for, what is said of lengths that it does not give."""

from pathlib import Path

import pytest

from primus_search.launch.experiment_space import space_of
from primus_search.learning.started_experiment import start
from primus_search.values.lengths import filling

LENGTHS = "workload.document_length={quantiles: {p10: 180, p50: 900, p100: 8192}}"
SWIFT = """NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen2.5-7B-Instruct --tensor_model_parallel_size 2 \\
  --sequence_parallel true --micro_batch_size 1 --global_batch_size 64 --max_length 8192 --train_type lora"""
HF_SWIFT = """NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-7B-Instruct --per_device_train_batch_size 2 \\
  --gradient_accumulation_steps 4 --max_length 8192 --deepspeed zero3"""
TRL = """trl sft --model_name_or_path Qwen/Qwen2.5-7B-Instruct --per_device_train_batch_size 2 --max_length 8192"""
FACTORY = """model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
finetuning_type: full
cutoff_len: 8192
per_device_train_batch_size: 1
deepspeed: ds_z3_config.json
"""
AUTOMODEL = """
step_scheduler: {global_batch_size: 64, local_batch_size: 1}
distributed: {strategy: fsdp2, tp_size: 1, cp_size: 1}
model: {pretrained_model_name_or_path: Qwen/Qwen2.5-7B-Instruct}
dataset: {_target_: nemo_automodel.components.datasets.llm.squad.make_squad_dataset, seq_length: 8192}
"""
VERL = """python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \\
  data.max_prompt_length=512 data.max_response_length=7680 actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
  algorithm.adv_estimator=grpo actor_rollout_ref.actor.use_kl_loss=True trainer.nnodes=1 trainer.n_gpus_per_node=8 \\
  actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384"""
VERL_SFT = """torchrun --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer \\
  model.partial_pretrain=Qwen/Qwen2.5-7B-Instruct data.max_length=8192 \\
  data.train_batch_size=64 data.micro_batch_size_per_gpu=1"""
NEMO_RL = """
sft: {max_num_steps: 60}
policy:
  model_name: Qwen/Qwen2.5-7B-Instruct
  train_global_batch_size: 64
  train_micro_batch_size: 1
  max_total_sequence_length: 8192
  dtensor_cfg: {enabled: true}
  sequence_packing: {enabled: PACKED}
cluster: {gpus_per_node: 8, num_nodes: 1}
"""
PRIMUS = """
modules:
  post_trainer:
    framework: BACK_END
    config: sft_trainer.yaml
    model: qwen2.5_7B.yaml
    overrides: {stage: sft, tensor_model_parallel_size: 2, sequence_parallel: true, global_batch_size: 64,
      micro_batch_size: 1, seq_length: 8192, MORE}
"""
BRIDGE = PRIMUS.replace("BACK_END", "megatron_bridge").replace("stage: sft,", "hf_path: Qwen/Qwen2.5-7B-Instruct,")
NATIVE = PRIMUS.replace("BACK_END", "megatron").replace("MORE", "max_position_embeddings: 8192, MORE")
MEGATRON = """torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 28 --hidden-size 3584 --ffn-hidden-size 18944 \\
  --num-attention-heads 28 --group-query-attention --num-query-groups 4 --swiglu --vocab-size 152064 \\
  --seq-length 8192 --micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 2 --bf16"""
TITAN = """
from torchtitan.hf_datasets.text_datasets import TextDataLoader
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer


def job() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"),
        dataloader=TextDataLoader.Config(),
        training=TrainingConfig(local_batch_size=1, seq_len=8192),
    )
"""

FILES = {
    "swift": ("a.sh", SWIFT, "unpadded"),
    "swift packed": ("a.sh", f"{SWIFT} --packing true", "token_budget"),
    "swift padded": ("a.sh", f"{SWIFT} --padding_free false", "pad_to_longest"),
    "swift trainer": ("a.sh", HF_SWIFT, "pad_to_longest"),
    "swift trainer packed": ("a.sh", f"{HF_SWIFT} --packing true --attn_impl flash_attn", "token_budget"),
    "swift trainer free": ("a.sh", f"{HF_SWIFT} --padding_free true --attn_impl flash_attn", "unpadded"),
    "trl": ("a.sh", TRL, "pad_to_longest"),
    "trl packed": ("a.sh", f"{TRL} --packing", "token_budget"),
    "trl wrapped": ("a.sh", f"{TRL} --packing --packing_strategy wrapped", ""),
    "factory": ("a.yaml", FACTORY, "pad_to_longest"),
    "factory packed": ("a.yaml", f"{FACTORY}packing: true\n", ""),
    "factory neat": ("a.yaml", f"{FACTORY}neat_packing: true\n", "whole"),
    "factory pretrains": ("a.yaml", FACTORY.replace("stage: sft", "stage: pt"), ""),
    "automodel": ("a.yaml", AUTOMODEL, "pad_to_longest"),
    "automodel packed": ("a.yaml", f"{AUTOMODEL}packed_sequence: {{packed_sequence_size: 8192}}\n", "whole"),
    "automodel mocked": ("a.yaml", AUTOMODEL.replace("squad.make_squad", "mock_iterable"), ""),
    "verl": ("a.sh", VERL, "unpadded"),
    "verl padded": ("a.sh", f"{VERL} actor_rollout_ref.model.use_remove_padding=False", "pad_to_window"),
    "verl sft": ("a.sh", VERL_SFT, "pad_to_window"),
    "verl sft unpadded": ("a.sh", f"{VERL_SFT} use_remove_padding=true", "unpadded"),
    "nemo-rl": ("a.yaml", NEMO_RL.replace("PACKED", "false"), "pad_to_longest"),
    "nemo-rl packed": ("a.yaml", NEMO_RL.replace("PACKED", "true"), "unpadded"),
    "bridge": ("a.yaml", BRIDGE.replace("MORE", "packed_sequence: false"), "pad_to_longest"),
    "bridge packed": ("a.yaml", BRIDGE.replace("MORE", "packed_sequence: true"), "whole"),
    "primus": ("a.yaml", NATIVE.replace("MORE", "enable_packed_sequences: false"), "pad_to_longest"),
    "primus in one": ("a.yaml", NATIVE.replace("MORE", "enable_packed_sequences: true"), ""),
    "primus packed": (
        "a.yaml",
        NATIVE.replace("MORE", "enable_packed_sequences: true, use_packed_attention: true"),
        "whole",
    ),
    "torchtitan": ("a.py", TITAN, ""),
    "torchtitan chats": ("a.py", TITAN.replace("TextDataLoader", "ChatDataLoader"), "whole"),
    "recipe": ("llama3_8b_sft_2gpu_h100_bf16", "", "whole"),
    "recipe of a benchmark": ("llama3_8b_sft_8gpu_h100_bf16", "", ""),  # on mock data of full rows
    "megatron": ("a.sh", MEGATRON, ""),
    "megatron sft": ("a.sh", f"{MEGATRON} --sft", "whole"),
    "megatron masks": ("a.sh", f"{MEGATRON} --reset-attention-mask", "cut"),
}


def written(folder: Path, name: str) -> Path:
    file, text, _ = FILES[name]
    if not text:
        return Path(file)
    (folder / file).write_text(text, encoding="utf-8")
    return folder / file


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_packed_as_its_launcher_packs_it(tmp_path: Path, name: str) -> None:
    given = {"model": "qwen2.5_7b"} if name.startswith(("primus", "megatron")) else {}
    begun = start(written(tmp_path, name), "mi300x" if "primus" in name else "h100", 0, **given)
    packing = FILES[name][2]
    assert begun.experiment.workload.get("packing", "") == packing
    said = [note for note in begun.notes if "workload.document_length" in note]
    assert len(said) == bool(packing) and not any("pack" in note for note in begun.experiment.not_modelled)
    framework = "nemo" if name.startswith("recipe") else ""
    plain = space_of(begun, [], None, framework).workload
    assert (plain.packing, plain.lengths, plain.balanced_packing) == ("cut", None, False)
    if packing:
        assert packing in said[0] and "--set workload.document_length=lengths.txt" in said[0]
        known = space_of(begun, [LENGTHS], None, framework).workload
        assert known.packing == packing and known.lengths is not None
        assert space_of(begun, [LENGTHS.removeprefix("workload.")], None, framework).workload == known


def test_rows_that_ranks_are_dealt_by_their_tokens_are_balanced(tmp_path: Path) -> None:
    begun = start(written(tmp_path, "verl"), "h100", 0)
    assert space_of(begun, [LENGTHS], None, "").workload.balanced_packing
    assert not space_of(begun, ["workload.document_length=900"], None, "").workload.balanced_packing
    padded = start(written(tmp_path, "verl padded"), "h100", 0)
    assert not space_of(padded, [LENGTHS], None, "").workload.balanced_packing


def test_a_pair_of_dpo_is_two_rows_whatever_starts_it(tmp_path: Path) -> None:
    batches = {
        "swift": (SWIFT.replace("megatron sft", "megatron rlhf --rlhf_type dpo"), "a.sh", 128, 2),
        "trainer": (HF_SWIFT.replace("swift sft", "swift rlhf --rlhf_type dpo"), "a.sh", 128, 4),
        "factory": (FACTORY.replace("stage: sft", "stage: dpo"), "a.yaml", 16, 2),
    }
    for text, file, batch, micro in batches.values():
        (tmp_path / file).write_text(text, encoding="utf-8")
        read = start(tmp_path / file, "h100", 1).experiment
        assert read.tuning["task"] == "dpo"
        assert (read.global_batch_size, read.row["micro_batch_size"]) == (batch, micro)


def test_rows_of_one_document_are_as_long_as_it() -> None:
    import numpy as np

    from primus_search.values.lengths import Lengths

    lengths, sizes = Lengths((100.0, 3000.0), (0.5, 0.5)), np.array([1, 4])
    alone = filling(lengths, "pad_to_longest", 4096, sizes[:1])
    found = filling(lengths, "unpadded", 4096, sizes)
    assert np.all(found.computed == alone.computed) and np.all(found.attended == alone.attended)
    assert found.computed[0] == found.counted
