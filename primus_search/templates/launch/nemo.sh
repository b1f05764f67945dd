{% include "launch/head.sh" %}
: "${BRIDGE_PATH:?set it to a checkout of Megatron-Bridge}"
{% if recipe %}
RECIPE={{ recipe }}
{% else %}
: "${RECIPE:?name a recipe of the family of your model, for example llama3_8b_pretrain_config}"
{% endif %}
{% include "launch/environment.sh" %}
{% if row.fp8 == "nvfp4" and row.fp8_attention %}
export NVTE_DPA_FP8_RECIPE="${NVTE_DPA_FP8_RECIPE:-Float8CurrentScaling}"
{% endif %}
{% include "launch/rendezvous.sh" %}
OVERRIDES=(
{% for word in words %}
  {{ word }}
{% endfor %}
)
{% include "launch/torchrun.sh" %}
  "$BRIDGE_PATH/scripts/training/run_recipe.py" --recipe "$RECIPE"{{ " --dataset " ~ dataset if dataset }}{{ " --mode " ~ mode if mode }} \
  --seq_length {{ seq_length }} \
  "${OVERRIDES[@]}" "$@"
