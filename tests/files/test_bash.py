"""The reader of scripts against bash itself: a stub in the place of every program notes the words that it is given."""

import shlex
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from primus_search.files.shell.bash import followed
from primus_search.launch.read.script_arguments import settings_in
from primus_search.launch.world import World, nodes_of

BASH = shutil.which("bash")
STUB = '#!/bin/bash\nprintf "%s\\0" "${0##*/}" "$@" $\'\\n\' >> "$WORDS"\n'
QUIET = "#!/bin/bash\nexit 0\n"
PROGRAMS, SILENT = ("f", "torchrun", "python", "deepspeed"), ("mkdir", "wget", "rm", "tee", "nvidia-smi")
TOOLS = ("dirname", "basename", "cut", "seq", "expr", "cat", "wc", "grep", "bash", "tr", "sed")
SCRIPTS = {
    "arguments by name": """
for A in "$@"; do
  KEY=$(echo $A | cut -f1 -d=)
  LENGTH=${#KEY}
  export "$KEY"="${A:$LENGTH+1}"
done
TP="${TP:-8}"; MBS="${MBS:-2}"
f --tp $TP --mbs ${MBS} --seq ${SEQ_LENGTH:-2048}
""",
    "a test over lines, and patterns with groups": """
FAST=false; DECAY=1.0
if [[ "$FAST" != "true" \\
    && "$FAST" != "false" ]]; then exit 1; fi
if [[ ! "$DECAY" =~ ^(0|1)(\\.[0-9]+)?$ ]]; then exit 1; fi
if [[ "$DECAY" =~ ^-?[0-9]+$ ]]; then f --whole; fi
f --decay $DECAY
""",
    "lines joined": """
LIST="
  --tp 4
  --pp   2
"
CMD="f $(echo "$LIST" | tr '\\n' ' ' | sed 's/  \\+/ /g')"
$CMD
""",
    "a folder of its own": """
i=2; OUT=/nowhere/at_all
while [ -d "$OUT" ]; do OUT=/nowhere/at_all_$i; ((i++)); done
f --tp 4
""",
    "options until there are none": """
TP=1; STAGE=0; FLAGS=
while [[ $# -gt 0 ]]; do
  case $1 in
    --tp) TP=$2; shift 2 ;;
    -z|--zero-stage) STAGE="$2"; shift; shift ;;
    --fast) FLAGS="$FLAGS --fast"; shift ;;
    *) shift ;;
  esac
done
f --tp $TP --zero-stage=$STAGE $FLAGS --bf16 2>&1 | tee log
""",
    "getopts and a function that leaves": """
usage() { echo "usage"; exit 1; }
PP=1
while getopts "t:p:h" opt; do
  case $opt in
    t) TP=$OPTARG ;;
    p) PP="$OPTARG" ;;
    h|*) usage ;;
  esac
done
shift $((OPTIND - 1))
f --tp ${TP-2} --pp $PP
""",
    "functions and associative arrays": """
declare -A HIDDEN=([1b]=2048 [7b]=4096)
declare -A LAYERS; LAYERS[1b]=24; LAYERS[7b]=32
sizes() {
  local hidden=$1 layers=$2
  ARGS=(--num-layers "$layers" --hidden-size "$hidden" --heads "$((hidden / 128))")
  [[ $hidden -ge 4096 ]] && ARGS+=(--swiglu) || ARGS+=(--gelu)
}
sizes "${HIDDEN[${SIZE:-7b}]}" "${LAYERS[7b]}"
f "${ARGS[@]}" ${#ARGS[@]} "${EMPTY[@]}"
""",
    "loops that build a list": """
for ((i=0; i<6; i++)); do
  if (( i < 2 )); then list+=(0); else list+=(1); fi
done
printf -v FREQUENCY "[%s]" "$(IFS=', '; echo "${list[*]}")"
PATTERN='*-'
for i in $(seq 1 3); do PATTERN+='*E'; done
n=4; until [ $n -le 1 ]; do n=$((n-1)); done
f --moe-layer-freq $FREQUENCY --pattern "$PATTERN" --n $n
""",
    "parts of a name": """
FILE=/data/run-7B.v2.json; STEM=$(basename $FILE .json); SIZE=${STEM%%.*}; SIZE=${SIZE/run-/}
PRECISION=BF16
case "${PRECISION,,}" in fp8*) P="--fp8-format hybrid" ;; bf16) P=--bf16 ;; esac
LIST=(1 2 4); [[ $SIZE =~ ^[0-9]+B ]] && Q=--sized
f --size $SIZE ${FILE##*.} ${SIZE^^} $P ${LIST[1]} ${LIST[@]:1} $Q ${LIST[0]}$((2**4)) `expr 8 \\* 4`
""",
    "documents, shells in shells and eval": """
TP=4
cat > job.sh <<EOF
N=2
f --tp $TP --n \\$N --all "\\$@"
EOF
bash job.sh a b
cat > job.sh <<'EOF'
f --tp ${TP:-none}
EOF
export TP; bash job.sh
CMD="f --x '1 2' --y $TP"
bash -c "$CMD --z \\$TP" ; eval $CMD >& log.txt
env A=1 f --last
""",
    "what a shell inside leaves, what grows from nothing": """
get() { local n=$1; if (( n > 2 )); then echo 2; else echo 1; fi; }
TP=$(get 4); FP8=true
ARGS=$(cat <<EOF
--tp $TP
--seq ${SEQ:=2048}
EOF
)
for i in 1 2 3; do [ $i -eq 2 ] && continue; ALL="$ALL --n $i"; done
( TP=99 )
if $FP8; then ALL="$ALL $([ $TP = 2 ] && echo "--fp8")"; fi
f $ARGS $ALL --again "${TP}" ${NONE:+--never 1} &
wait
""",
    "guards": """
set -e
[ -z "$ZERO" ] && ZERO=1
if [ $ZERO -eq 1 ] && ! [ 2 -gt 3 ]; then a=1; elif [ 1 = 1 ]; then a=2; else a=3; fi
if [[ ( $a == 1 || $a == 2 ) && -n "$ZERO" ]]; then b=yes; fi
: ${GPUS:=8}
test $b = yes || exit 1
if [ $GPUS -lt 4 ]; then echo "too few"; exit 1; fi
f --a $a --b $b --gpus $GPUS "x
y" a\\ b 'it is' "say \\"it\\"" --c=$((GPUS > 4 ? 1 : 0)) # --d
""",
}
ARGUMENTS = {
    "arguments by name": "TP=4 SEQ_LENGTH=8192",
    "options until there are none": "--tp 4 -z 2 --fast other",
    "getopts and a function that leaves": "-t4 -p 2",
}


def by_bash(script: Path, arguments: list[str]) -> list[str]:
    """The words that bash hands to programs, their names included."""
    programs, noted = script.parent / "programs", script.parent / "words"
    programs.mkdir()
    for names, text in ((PROGRAMS, STUB), (SILENT, QUIET)):
        for name in names:
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
    for name in TOOLS:
        (programs / name).symlink_to(str(shutil.which(name)))
    (programs / "env").write_text('#!/bin/bash\nwhile [[ "$1" == *=* ]]; do shift; done\nexec "$@"\n')
    (programs / "env").chmod(0o755)
    environ = {"PATH": str(programs), "WORDS": str(noted)}
    subprocess.run([str(BASH), str(script), *arguments], cwd=script.parent, env=environ, check=False, timeout=60)
    return [word for word in noted.read_text().split("\0") if word not in ("\n", "")]


@pytest.mark.skipif(BASH is None, reason="no bash here")
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("started_with_arguments", [False, True])
def test_programs_get_the_words_that_bash_gives_them(name: str, started_with_arguments: bool, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(SCRIPTS[name])
    arguments = ARGUMENTS.get(name, "").split() if started_with_arguments else []
    started = f"set -- {shlex.join(arguments)}\n" if arguments else ""
    commands = followed(started + SCRIPTS[name], {}, tmp_path).commands
    ours = [word for words in commands for word in (words[2:] if words[0] == "env" else words)]
    assert ours == by_bash(script, arguments)


TRAINING = "torchrun --nproc_per_node 8 t.py --num-layers 2 --hidden-size 64 --micro-batch-size 1"


def test_an_exit_behind_a_test_of_files_is_not_taken() -> None:
    found = settings_in(f"if [ ! -f data ]; then echo none; exit 1; fi\n[ -d x ] || exit 1\n{TRAINING}", {})
    assert (found["num_layers"], found["world_size"], "undecided" in found) == ("2", "8", False)


def test_a_script_that_leaves_before_its_training_is_refused_with_the_line() -> None:
    with pytest.raises(ValueError, match="line 2: the script exits before it starts a training"):
        settings_in(f"SIZE=1\nif [ $SIZE != 7 ]; then exit 1; fi\n{TRAINING}", {})


def test_a_variable_that_must_be_filled_in_has_no_value_and_the_script_goes_on() -> None:
    guard = 'IMAGE=""\nif [ -z "$IMAGE" ]; then echo "set it"; exit 1; fi\n[[ -n $LAYERS ]] || exit 1\n'
    found = settings_in(f"{guard}srun --image $IMAGE {TRAINING.replace('--num-layers 2', '--num-layers $LAYERS')}", {})
    assert (found["num_layers"], found["hidden_size"]) == ("\0LAYERS\0", "64")
    for test in ("[ $# -lt 2 ]", '[[ "$#" -ne 2 ]]', "(( $# < 2 ))"):
        found = settings_in(f"if {test}; then echo usage; exit 1; fi\n{TRAINING} --save $2", {})
        assert (found["num_layers"], found["save"]) == ("2", "\x002\x00")


def test_what_a_program_prints_is_asked_for_by_the_name_that_it_is_given() -> None:
    text = f"LAYERS=$(python -c 'print(32)')\n{TRAINING.replace('--num-layers 2', '--num-layers $LAYERS')}"
    assert settings_in(text, {})["num_layers"] == "\0LAYERS\0"
    assert settings_in(text, {"LAYERS": "32"})["num_layers"] == "32"


@pytest.mark.parametrize(
    "started",
    [
        "bcprun -p 8 -c '{}'",
        "sbatch --nodes=2 --wrap '{}'",
        "sbatch --wrap='{}'",
        "ngc batch run --commandline '{}'",
        "gcloud compute ssh host --command '{}'",
        "ssh worker-1 '{}'",
    ],
)
def test_a_script_in_an_option_of_its_starter_is_followed(started: str) -> None:
    assert ["python", "train.py", "--tp", "4"] in followed(
        "TP=4; " + started.format("cd x; python train.py --tp 4")
    ).commands


def test_code_of_python_is_no_script() -> None:
    assert followed("python -c 'import os; bash x'").commands == [["python", "-c", "import os; bash x"]]


def test_fields_of_a_document_beside_a_script_are_read(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text("training: {num_layers: 12, name: x}\n")
    text = "f $(yq '.training.num_layers' ./configs/model.yaml) $(jq -r .training.name model.yaml) $(yq .no model.yaml)"
    words = followed(text, folder=tmp_path).commands[-1]
    assert words[1:3] == ["12", "x"]
    assert "$(" in words[3]


def test_a_guess_names_the_keys_that_it_changes() -> None:
    text = f'if nvidia-smi | grep -q H100; then FP8="--fp8-format hybrid"; fi\n{TRAINING} $FP8'
    assert settings_in(text, {})["undecided"] == {"$(grep -q H100)": {"fp8_format"}}


def test_trainings_that_differ_are_named_and_files_beside_a_script_are_read(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "own.sh").write_text("MODEL_ARGS=(--num-layers 4)")
    text = f'source "$(dirname $0)/models/own.sh"\nfor tp in 1 2; do {TRAINING} "${{MODEL_ARGS[@]}}" --tp $tp; done'
    found = settings_in(text, {}, tmp_path)
    assert (found["num_layers"], found["starts"]) == ("4", {"tp"})
    with pytest.raises(ValueError, match=r"reads \./models/its\.sh, which is not beside it"):
        settings_in('. ./models/its.sh\npython t.py "${MODEL_ARGS[@]}"', {}, tmp_path / "models")


@pytest.mark.parametrize(
    ("text", "world"),
    [
        ("#SBATCH --nodes=4\n#SBATCH --gpus-per-node=h100:8\nsrun python t.py --num-layers 2", 32),
        ("#SBATCH -N 2\nsrun torchrun --nnodes $SLURM_NNODES --nproc-per-node=4 t.py --num-layers 2", 8),
        ("mpirun -np 16 python t.py --num-layers 2", 16),
        ("deepspeed --num_nodes 2 --num_gpus 8 t.py --num-layers 2", 16),
        ("torchrun --nnodes $NODES --nproc_per_node 8 t.py --num-layers 2", 0),
        ("python -m torch.distributed.run --nproc_per_node 8 t.py --num-layers 2", 8),
        ("torchrun t.py --num-layers 2", 1),
        ("torchrun --nproc_per_node gpu t.py --num-layers 2", 0),
        ("torchrun $OPTIONS t.py --num-layers 2", 0),
        ("srun -N 2 -n 2 torchrun --nproc_per_node 8 t.py --num-layers 2", 16),
        ("accelerate launch --num_machines 3 --num_processes 12 t.py --num-layers 2", 12),
    ],
)  # fmt: skip
def test_the_launcher_says_how_many_are_started(text: str, world: int) -> None:
    assert int(settings_in(text, {}).get("world_size", 0)) == world


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 64, 512])
@pytest.mark.parametrize("per_node", [1, 2, 4, 6, 8, 12, 16])
def test_nodes_times_processes_are_as_many_as_the_command_starts(nodes: int, per_node: int) -> None:
    found = settings_in(f"torchrun --nnodes {nodes} --nproc_per_node {per_node} t.py --num-layers 2", {})
    world = World(int(found["world_size"]), int(found["nproc_per_node"]))
    assert nodes_of(world, 8) == (nodes, per_node)
    for size in (4, 8, 18):
        many, each = nodes_of(World(world.gpus), size)
        assert many * each == world.gpus
        assert each <= size


@pytest.mark.daily(4)
@pytest.mark.parametrize(
    "text",
    ["f() { f; }\nf", "A=x; while true; do A=$A$A; done", "while true; do B=1; done", "eval eval eval '$0'", "$(" * 99,
     "(" * 5_000, "((" * 5_000, 'A="$(' * 60, "case x in " * 500, "if true; then " * 500, "x=$((1?1?1?1:2:3:4))" * 50],
)  # fmt: skip
def test_a_script_without_end_is_refused_or_read_in_no_time(text: str) -> None:
    begun = time.process_time()
    with suppress(ValueError):
        settings_in(f"{text}\n{TRAINING}", {})
    assert time.process_time() - begun < 5.0
