{# Where nodes meet: the user's variables first, then Slurm's, then this machine. #}
: "${NNODES:={{ nodes }}}"
: "${GPUS_PER_NODE:={{ gpus }}}"
: "${NODE_RANK:=${SLURM_NODEID:-0}}"
if [[ -z "${MASTER_ADDR:-}" && -n "${SLURM_JOB_NODELIST:-}" ]]; then
  MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
fi
: "${MASTER_ADDR:=localhost}"
: "${MASTER_PORT:=29500}"
