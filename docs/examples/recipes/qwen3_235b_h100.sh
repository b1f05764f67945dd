#!/usr/bin/env bash
# Qwen3-235B-A22B on 32 nodes x 8 GPUs
# Slurm: srun --nodes 32 --ntasks-per-node 1 --gpus-per-node 8 bash megatron.sh
# Edit: MEGATRON_PATH, a checkout of Megatron-LM; DATA_PATH for your data (mock data without it)
# Edit: tokenizer, learning rate, iterations and checkpoint folders below
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export NCCL_GRAPH_REGISTER=0
: "${MEGATRON_PATH:?set it to a checkout of Megatron-LM}"
: "${NNODES:=32}"
: "${GPUS_PER_NODE:=8}"
: "${NODE_RANK:=${SLURM_NODEID:-0}}"
if [[ -z "${MASTER_ADDR:-}" && -n "${SLURM_JOB_NODELIST:-}" ]]; then
  MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
fi
: "${MASTER_ADDR:=localhost}"
: "${MASTER_PORT:=29500}"
MODEL_ARGS=(
  --num-layers 94
  --hidden-size 4096
  --ffn-hidden-size 12288
  --num-attention-heads 64
  --max-position-embeddings 4096
  --position-embedding-type rope
  --normalization RMSNorm
  --attention-dropout 0.0
  --hidden-dropout 0.0
  --swiglu
  --qk-layernorm
  --kv-channels 128
  --group-query-attention
  --num-query-groups 4
  --num-experts 128
  --moe-router-topk 8
  --moe-ffn-hidden-size 1536
  --moe-layer-freq '([1]*94)'
  --moe-router-load-balancing-type aux_loss
  --moe-aux-loss-coeff 0.001
  --untie-embeddings-and-output-weights
  --disable-bias-linear
)
CANDIDATE_ARGS=(
  --bf16
  --seq-length 4096
  --global-batch-size 8192
  --pipeline-model-parallel-size 8
  --micro-batch-size 1
  --tensor-model-parallel-size 2
  --sequence-parallel
  --context-parallel-size 1
  --expert-model-parallel-size 32
  --expert-tensor-parallel-size 1
  --fp8-format hybrid
  --fp8-recipe tensorwise
  --use-distributed-optimizer
  --moe-token-dispatcher-type alltoall
  --moe-grouped-gemm
  --overlap-moe-expert-parallel-comm
  --cross-entropy-loss-fusion
  --overlap-grad-reduce
  --pipeline-model-parallel-layout 'Ett|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttt|ttL'
  --overlap-param-gather
)
TRAINING_ARGS=(
  --use-mcore-models
  --transformer-impl transformer_engine
  --train-iters 50
  --eval-iters 0
  --lr 0.0001
  --min-lr 1e-05
  --lr-decay-style cosine
  --lr-warmup-iters 2
  --weight-decay 0.1
  --adam-beta1 0.9
  --adam-beta2 0.95
  --clip-grad 1.0
)
TOKENIZER_ARGS=(
  --tokenizer-type NullTokenizer
  --vocab-size 151935
)
DATA_ARGS=(--mock-data)
if [[ -n "${DATA_PATH:-}" ]]; then DATA_ARGS=(--data-path "$DATA_PATH" --split 99,1,0); fi
torchrun --nnodes "$NNODES" --nproc-per-node "$GPUS_PER_NODE" --node-rank "$NODE_RANK" \
  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  "$MEGATRON_PATH/pretrain_gpt.py" \
  "${MODEL_ARGS[@]}" "${CANDIDATE_ARGS[@]}" "${TRAINING_ARGS[@]}" "${TOKENIZER_ARGS[@]}" "${DATA_ARGS[@]}" "$@"
