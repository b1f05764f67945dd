#!/usr/bin/env bash
# {{ model }} on {{ nodes }} nodes x {{ gpus }} GPUs
# Needs: {{ needs }}
# Slurm: srun --nodes {{ nodes }} --ntasks-per-node 1 --gpus-per-node {{ gpus }} bash {{ name }}
{% for line in edits %}
# Edit: {{ line }}
{% endfor %}
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
