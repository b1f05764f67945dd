"""The share of public job files that is read, by launcher, over a committed list (`tools/coverage.tsv`).

    python -m tools.coverage NVIDIA/Megatron-LM=../Megatron-LM modelscope/ms-swift=../ms-swift.git

A checkout or a bare repository stands for each repository; files of others are left out. A file is read where it gives
a legal candidate with model, sequence and batch. `expect` of the list is what a person, or a rule for a folder, says of
the file: read, or refuse (adapters, other kinds of models). A refusal that names what the file lacks (a
model's config.json, a length, a variable) is right, too. Misread: read although it is not to be, or with other degrees
than stand in the text (`read by hand`: those were compared by a person).
"""

import csv
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from primus_search.base.errors import PrimusSearchError
from primus_search.files.known_keys import key_table
from primus_search.launch.experiment_space import space_of
from primus_search.learning.started_experiment import start
from primus_search.space import Enumerator

LIST = Path(__file__).with_suffix(".tsv")
KINDS = ("read", "refused rightly", "refused wrongly", "misread")
DEGREES = ("tp", "pp", "ep")
ENDS = (".sh", ".yaml", ".yml", ".py", ".json", ".toml", ".slurm", ".sbatch", ".sub", ".conf", ".env")


def rows() -> list[dict[str, str]]:
    """The list: launcher, repository, commit, path, expect."""
    with LIST.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def unpacked(root: Path, commit: str, rows: list[dict[str, str]], into: Path) -> Path:
    """A folder with the job files of a commit and what they name: the checkout, or what its index gives.

    Of a repository that is a partial clone files may be missing.
    """
    if not (root / "HEAD").exists():
        return root
    git = ["git", "-C", str(root), f"--work-tree={into}"]
    own = {**os.environ, "GIT_INDEX_FILE": str(into / ".index")}
    subprocess.run([*git, "read-tree", commit], capture_output=True, check=False, env=own)
    wanted = (*(f"*{end}" for end in ENDS), *(row["path"] for row in rows))
    listed = subprocess.run([*git, "ls-files", "-z", *wanted], capture_output=True, check=False, env=own).stdout
    subprocess.run(
        [*git, "checkout-index", "-q", "-f", "-z", "--stdin"], input=listed, capture_output=True, check=False, env=own
    )
    return into


def outcome(path: Path, expect: str) -> tuple[str, str]:
    """What becomes of a file: one of `KINDS`, and the reason or the job."""
    text = path.read_text(encoding="utf-8", errors="replace")
    named = re.search(
        r"(?:--gpu |config_(?:DGX)?|dgx_)(gb?[23]00)(?!\d)|mi3|primus-cli|pre_trainer:", f"{path} {text}", re.IGNORECASE
    )
    try:
        begun = start(path, (named[1] or "mi355x").lower() if named else "h100", 0)
        space = space_of(begun, [], None, "")
        enumerator = Enumerator(space)
        chunk = enumerator.chunk(0, enumerator.size)
        if not len(chunk.candidates):
            names = [name for name, count in (enumerator.removed | chunk.removed).items() if count]
            return _refused(expect, ""), f"not legal: {', '.join(names)}"
    except (PrimusSearchError, ValueError) as error:
        return _refused(expect, str(error)), str(error).partition("\n")[0].removeprefix(f"{path}: ")
    row = begun.experiment.row
    other = [
        f"{name} {row[name]}, in the text {found}" for name, found in _degrees(text).items() if row[name] not in found
    ]
    if not expect.startswith("read"):
        return "misread", "was to be refused"
    if other and expect == "read":
        return "misread", "; ".join(other)
    return "read", begun.experiment.program or space.framework.title


ASKS = re.compile(
    "give --model|does not set|depends on|exits before|wants arguments|does not start it|give the script|one of them"
    "|name one"
)
"""What a refusal says that asks for what the file does not have, or that the framework itself refuses."""


def _refused(expect: str, reason: str) -> str:
    return KINDS[2] if expect.startswith("read") and not ASKS.search(reason) else KINDS[1]


OF_POLICY = r"(?<![\w-])" + "".join(rf"(?<!{engine}\.)" for engine in ("rollout", "vllm", "engine", "teacher", "ref"))
"""In front of a name of the job's own, not of an engine of rollouts, a teacher or a reference."""


def _degrees(text: str) -> dict[str, set[int]]:
    """Every number that stands behind a usual name of a degree; names that only a number stands behind."""
    found: dict[str, set[int]] = {}
    for name in DEGREES:
        names = key_table("other_files")["names"][name].replace("_", "[_-]")
        said = re.findall(rf"{OF_POLICY}(?:{names})[\"']?\s*[:= ]\s*[\"']?(\S+)", text)
        if said and all(one.strip("\"',\\").isdecimal() for one in said):
            found[name] = {max(int(one.strip("\"',\\")), 1) for one in said}  # 0 of GPT-NeoX is none
    return found


def outcomes(checkouts: Mapping[str, Path]) -> Iterator[tuple[dict[str, str], str, str]]:
    """Each row of the list whose repository is at hand, what becomes of it, and why."""
    listed = [row for row in rows() if row["repository"] in checkouts]
    for repository, commit in dict.fromkeys((row["repository"], row["commit"]) for row in listed):
        of_commit = [row for row in listed if (row["repository"], row["commit"]) == (repository, commit)]
        with tempfile.TemporaryDirectory() as folder:
            root = unpacked(checkouts[repository], commit, of_commit, Path(folder))
            for row in of_commit:
                if (root / row["path"]).is_file():
                    yield row, *outcome(root / row["path"], row["expect"])


def main() -> int:
    """Print what becomes of each file, then the counts by launcher; 1 where a file was misread."""
    checkouts = {name: Path(path) for name, _, path in (one.partition("=") for one in sys.argv[1:])}
    counts: dict[str, Counter[str]] = {}
    for row, kind, why in outcomes(checkouts):
        counts.setdefault(row["launcher"], Counter())[kind] += 1
        print(kind, row["launcher"], row["path"], why[:160], sep="\t")
    counts["all"] = sum(counts.values(), Counter())
    for launcher, count in counts.items():
        print(f"| {launcher} | {count.total()} | {' | '.join(str(count[kind]) for kind in KINDS)} |")
    return 1 if counts["all"]["misread"] else 0


if __name__ == "__main__":
    sys.exit(main())
