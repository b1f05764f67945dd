{% include "launch/head.sh" %}
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
{% include "launch/rendezvous.sh" %}
{% include "launch/torchrun.sh" %}
  -m torchtitan.train {{ options.started }} "$@"
