{% include "launch/head.sh" %}
{% if row.sharding in ("fsdp2", "hsdp") %}
{# FSDP refuses 1 (Megatron-LM arguments.py). #}
export CUDA_DEVICE_MAX_CONNECTIONS=8
{% endif %}
{% if row.fp8 == "mxfp8" %}
export NVTE_ROCM_ENABLE_MXFP8=1
{% endif %}
: "${PRIMUS_PATH:?set it to a checkout of Primus}"
{% include "launch/rendezvous.sh" %}
export NNODES GPUS_PER_NODE NODE_RANK MASTER_ADDR MASTER_PORT
EXPERIMENT="$PWD/primus.yaml"
cd "$PRIMUS_PATH"
./runner/primus-cli direct -- train pretrain --config "$EXPERIMENT" "$@"
