"""Random worlds, 1 to 4,096 GPUs on nodes of 1 to 100: as many as were started, in a file, a space and a logged job."""

import random
import re
from pathlib import Path

import numpy as np
import pytest

from primus_search.declare import make_space
from primus_search.files.hardware_files import load_hardware
from primus_search.launch.experiment_space import space_of
from primus_search.launch.world import World, nodes_of
from primus_search.learning.started_experiment import start
from primus_search.space import Enumerator, Space

PER_NODE = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 100)
SCRIPT = (
    "torchrun --nnodes {nodes} --nproc-per-node {each} pretrain_gpt.py --num-layers 16 --hidden-size 2048 "
    "--ffn-hidden-size 8192 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --swiglu "
    "--disable-bias-linear --position-embedding-type rope --bf16 --vocab-size 128256 --micro-batch-size 1 "
    "--global-batch-size {batch} --use-distributed-optimizer"
)


def worlds(count: int) -> list[tuple[int, int]]:
    """Nodes and GPUs per node, small and large worlds alike."""
    rng = random.Random(43)
    each = [rng.choice(PER_NODE) for _ in range(count)]
    return [(max(1, min(int(4096 ** rng.random()), 4096) // one), one) for one in each]


def made(space: Space) -> tuple[int, int, int]:
    """Nodes, GPUs per node and replicas of the first candidate of a space."""
    found = Enumerator(space).rows(np.zeros(1, np.int64))
    cluster = space.cluster
    return cluster.num_nodes, cluster.network.gpus_per_node, int(space.job_on(space.clusters[0]).degrees(found).dp[0])


COMMANDS = {
    "torchrun from one to as many nodes": "torchrun --nnodes=1:{n} --nproc_per_node={m} {job}",
    "Slurm, all GPUs": "#!/bin/bash\n#SBATCH -N {n}\n#SBATCH --gpus={g}\n#SBATCH --ntasks={g}\nsrun python {job}",
    "Slurm, all tasks": "#!/bin/bash\n#SBATCH -N {n}\n#SBATCH -n {g}\nsrun python {job}",
    "Slurm, GPUs of a task": "#!/bin/bash\n#SBATCH -N {n}\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-task={m}\n"
    "srun torchrun --nnodes {n} --nproc-per-node $SLURM_GPUS_PER_TASK {job}",
    "Slurm, one GPU a task": "srun --nodes={n} --ntasks={g} --gpus-per-task=1 python {job}",
    "Slurm, short options": "#!/bin/bash\n#SBATCH -N{n}\n#SBATCH --ntasks-per-node={m}\nsrun python {job}",
    "LSF": "#!/bin/bash\n#BSUB -n {g}\n#BSUB -gpu num={m}\n#BSUB -R span[ptile={m}]\nmpirun python {job}",
    "TORQUE": "#!/bin/bash\n#PBS -l nodes={n}:ppn={m}:gpus={m}\nmpirun -np {g} python {job}",
    "PBS": "#!/bin/bash\n#PBS -l select={n}:ncpus=8:ngpus={m}:mpiprocs={m}\nmpirun -np {g} python {job}",
    "Open MPI": "mpirun -np {g} -N {m} python {job}",
    "Open MPI, mapped": "mpirun -np {g} --map-by ppr:{m}:node python {job}",
    "MPICH": "mpiexec -n {g} -ppn {m} python {job}",
    "hosts": "horovodrun -np {g} -H {hosts} python {job}",
    "file of hosts": "mpirun -np {g} --hostfile hosts python {job}",
    "DeepSpeed": "deepspeed --num_nodes {n} --num_gpus {m} {job}",
    "DeepSpeed, file of hosts": "deepspeed --hostfile=./hosts {job}",
    "DeepSpeed, devices of hosts": 'deepspeed --include "{listed}" {job}',
    "accelerate": "accelerate launch --num_machines={n} --num_processes=$(({n}*{m})) {job}",
    "accelerate, a file": "accelerate launch --config_file one.yaml {job}",
    "Colossal-AI": "colossalai run --nproc_per_node {m} --host {hosts} {job}",
    "composer": "composer -n {m} --world_size {g} {job}",
    "Fabric": "fabric run --accelerator=cuda --devices={m} --num-nodes={n} {job}",
    "visible devices": "export CUDA_VISIBLE_DEVICES={devices}\ntorchrun --nnodes {n} --nproc-per-node gpu {job}",
    "torchx": "torchx run -s slurm dist.ddp -j {n}x{m} --script {job}",
    "jsrun": "jsrun -n {n} -g {m} -a {m} python {job}",
    "flux": "flux run -N {n} -n {g} -g 1 python {job}",
    "variables of torch": "export WORLD_SIZE={g} NNODES={n}\npython {job}",
    "variables of torch and of a node": "export WORLD_SIZE={g}\nexport LOCAL_WORLD_SIZE={m}\npython {job}",
}
POD = """containers:
{pad}- command: ["bash", "-c", "{run}"]
{pad}  resources: {{limits: {{nvidia.com/gpu: {m}}}}}
"""
MANIFESTS = {
    "PyTorchJob": """spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: {n}
      template:
        spec:
          {pod}""",
    "MPIJob": """spec:
  mpiReplicaSpecs:
    Launcher:
      template:
        spec:
          containers: [{{command: [bash, -c, "mpirun -np {g} python {job}"]}}]
    Worker:
      replicas: {n}
      template:
        spec:
          containers:
          - resources: {{limits: {{amd.com/gpu: {m}}}}}
""",
    "JobSet": """spec:
  replicatedJobs:
  - replicas: 1
    template:
      spec:
        parallelism: {n}
        template:
          spec:
            {pod}""",
    "LeaderWorkerSet": """spec:
  replicas: 1
  leaderWorkerTemplate:
    size: {n}
    workerTemplate:
      spec:
        {pod}""",
    "TrainJob": """spec:
  trainer:
    numNodes: {n}
    numProcPerNode: {m}
    command: [bash, -c, "torchrun {job}"]
""",
    "SkyPilot": """num_nodes: {n}
resources: {{accelerators: "H100:{m}"}}
run: |
  if [ "$SKYPILOT_NODE_RANK" != "0" ]; then sleep infinity; exit 0; fi
  torchrun --nnodes $SKYPILOT_NUM_NODES --nproc_per_node $SKYPILOT_NUM_GPUS_PER_NODE {job}
""",
}


@pytest.mark.parametrize("name", [*COMMANDS, *MANIFESTS])
def test_a_world_is_that_of_its_command_or_manifest(name: str, tmp_path: Path) -> None:
    for n, m in ((3, 4), (2, 16), (5, 1), (1, 3), (256, 16)):
        job = SCRIPT[SCRIPT.index("pretrain_gpt.py") :].format(batch=4 * n * m)
        (tmp_path / "hosts").write_text("".join(f"host{node} slots={m}\n" for node in range(n)))
        (tmp_path / "one.yaml").write_text(f"num_processes: {n * m}\nnum_machines: {n}\n")
        of_all = {"n": n, "m": m, "g": n * m, "job": job, "hosts": ",".join(f"h{node}:{m}" for node in range(n)),
                  "devices": ",".join(map(str, range(m))),
                  "listed": "@".join(f"h{node}:{','.join(map(str, range(m)))}" for node in range(n))}  # fmt: skip
        if text := MANIFESTS.get(name):
            pad = re.search(r"( *)\{pod\}", text)
            of_all["pod"] = POD.format(pad=pad[1] if pad else "", run=f"torchrun --nproc_per_node {m} {job}", m=m)
            text = f"apiVersion: v1\nkind: {name}\n{text}"
        path = tmp_path / ("job.yaml" if text else "run.sh")
        path.write_text((text or COMMANDS[name]).format(**of_all))
        begun = start(path, "h100", 0)
        assert (begun.nodes, begun.per_node) == (n, m)


def test_hosts_of_a_file_that_is_not_there_are_assumed_and_said(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("deepspeed --hostfile /job/hosts " + SCRIPT[SCRIPT.index("pretrain_gpt.py") :].format(batch=64))
    assert any("1 node assumed" in note for note in start(path, "h100", 0).notes)


@pytest.mark.parametrize(("nodes", "each"), worlds(30))
def test_a_world_is_priced_as_it_was_started(nodes: int, each: int, tmp_path: Path) -> None:
    gpus = nodes * each
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT.format(nodes=nodes, each=each, batch=4 * gpus))
    begun = start(path, "h100", 0)  # of `project FILE` and `run --baseline FILE`
    assert (begun.nodes, begun.per_node) == (nodes, each)
    assert made(space_of(begun, [], None, "")) == (nodes, each, gpus)
    space = {"model": "llama3.2_1b", "hardware": "h100", "gpus_per_node": each, "framework": "megatron",
             "workload": {"seq_length": 4096, "global_batch_size": 4 * gpus},
             "space": {"tp": 1, "pp": 1, "cp": 1, "micro_batch_size": 1,
                       "sharding": "distributed_optimizer"}}  # fmt: skip
    assert made(make_space(space, nodes=nodes)) == (nodes, each, gpus)
    assert nodes_of(World(gpus, each), load_hardware("h100").network.gpus_per_node) == (nodes, each)  # of `learn`
