{# HybridEP counts domains by it (deepseek-ai/DeepEP csrc/hybrid_ep). #}
{% if row.dispatch_backend == "hybridep" %}
export NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN={{ [row.ep * row.etp, domain] | min }}
{% endif %}
{# Transformer Engine then leaves weights alone beside offloaded modules (arguments.py). #}
{% if row.offload_modules != "none" %}
export NVTE_CPU_OFFLOAD_V1=1
{% endif %}
