{# Transformer Engine then leaves weights alone beside offloaded modules (arguments.py). #}
{% if row.offload_modules != "none" %}
export NVTE_CPU_OFFLOAD_V1=1
{% endif %}
