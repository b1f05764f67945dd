#!/usr/bin/env bash
# DeepSeek-V3 on 64 nodes x 4 GPUs
# Slurm: srun --nodes 64 --ntasks-per-node 1 --gpus-per-node 4 bash megatron.sh
# Edit: MEGATRON_PATH, a checkout of Megatron-LM; DATA_PATH for your data (mock data without it)
# Edit: tokenizer, learning rate, iterations and checkpoint folders below
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export NCCL_GRAPH_REGISTER=0
: "${MEGATRON_PATH:?set it to a checkout of Megatron-LM}"
: "${NNODES:=64}"
: "${GPUS_PER_NODE:=4}"
: "${NODE_RANK:=${SLURM_NODEID:-0}}"
if [[ -z "${MASTER_ADDR:-}" && -n "${SLURM_JOB_NODELIST:-}" ]]; then
  MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
fi
: "${MASTER_ADDR:=localhost}"
: "${MASTER_PORT:=29500}"
MODEL_ARGS=(
  --num-layers 61
  --hidden-size 7168
  --ffn-hidden-size 18432
  --num-attention-heads 128
  --max-position-embeddings 4096
  --position-embedding-type rope
  --normalization RMSNorm
  --attention-dropout 0.0
  --hidden-dropout 0.0
  --swiglu
  --mtp-num-layers 1
  --multi-latent-attention
  --kv-lora-rank 512
  --q-lora-rank 1536
  --qk-head-dim 128
  --qk-pos-emb-head-dim 64
  --v-head-dim 128
  --num-experts 256
  --moe-router-topk 8
  --moe-ffn-hidden-size 2048
  --moe-layer-freq '([0]*3+[1]*58)'
  --moe-router-load-balancing-type aux_loss
  --moe-aux-loss-coeff 0.001
  --moe-shared-expert-intermediate-size 2048
  --untie-embeddings-and-output-weights
  --disable-bias-linear
)
CANDIDATE_ARGS=(
  --bf16
  --seq-length 4096
  --global-batch-size 4096
  --pipeline-model-parallel-size 2
  --micro-batch-size 1
  --tensor-model-parallel-size 1
  --context-parallel-size 1
  --expert-model-parallel-size 32
  --expert-tensor-parallel-size 1
  --fp8-format e4m3
  --fp8-recipe mxfp8
  --use-distributed-optimizer
  --moe-enable-deepep
  --moe-token-dispatcher-type flex
  --moe-router-dtype fp32
  --moe-grouped-gemm
  --overlap-moe-expert-parallel-comm
  --cuda-graph-impl local
  --cuda-graph-scope full_iteration
  --te-rng-tracker
  --no-check-for-nan-in-loss-and-grad
  --moe-pad-experts-for-cuda-graph-inference
  --cross-entropy-loss-fusion
  --overlap-grad-reduce
  --pipeline-model-parallel-layout 'Etttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tmL'
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
  --vocab-size 129279
)
DATA_ARGS=(--mock-data)
if [[ -n "${DATA_PATH:-}" ]]; then DATA_ARGS=(--data-path "$DATA_PATH" --split 99,1,0); fi
torchrun --nnodes "$NNODES" --nproc-per-node "$GPUS_PER_NODE" --node-rank "$NODE_RANK" \
  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  "$MEGATRON_PATH/pretrain_gpt.py" \
  "${MODEL_ARGS[@]}" "${CANDIDATE_ARGS[@]}" "${TRAINING_ARGS[@]}" "${TOKENIZER_ARGS[@]}" "${DATA_ARGS[@]}" "$@"
