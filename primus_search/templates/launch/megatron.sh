{% include "launch/head.sh" %}
{# Megatron wants 1 for overlap with tensor and context parallelism, and refuses 1 under FSDP (arguments.py). #}
export CUDA_DEVICE_MAX_CONNECTIONS={{ 8 if is_fsdp else 1 }}
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
{# Graphs of modules are refused with expandable segments otherwise (arguments.py). #}
export NCCL_GRAPH_REGISTER=0
{% include "launch/environment.sh" %}
: "${MEGATRON_PATH:?set it to a checkout of Megatron-LM}"
{% include "launch/rendezvous.sh" %}
{% if is_hybrid %}
ENTRY=pretrain_mamba.py; if [[ -f "$MEGATRON_PATH/pretrain_hybrid.py" ]]; then ENTRY=pretrain_hybrid.py; fi
{% endif %}
{% for array, options in arrays.items() %}
{{ array }}=(
{% for words in options %}
  {{ words | join(" ") }}
{% endfor %}
)
{% endfor %}
DATA_ARGS=(--mock-data)
if [[ -n "${DATA_PATH:-}" ]]; then DATA_ARGS=(--data-path "$DATA_PATH" --split 99,1,0); fi
{% include "launch/torchrun.sh" %}
  "$MEGATRON_PATH/{{ "$ENTRY" if is_hybrid else "pretrain_gpt.py" }}" \
  "${MODEL_ARGS[@]}" "${CANDIDATE_ARGS[@]}" "${TRAINING_ARGS[@]}" "${TOKENIZER_ARGS[@]}" "${DATA_ARGS[@]}" "$@"
