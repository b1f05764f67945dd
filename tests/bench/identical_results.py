"""Are results identical to those of another checkout? `identical_results.py BASELINE_DIR [SPACE ...]`.

BASELINE_DIR holds what the other checkout wrote: a run folder per shipped space (`primus-search run spaces/X.yaml
--bench off --out BASELINE_DIR/X`) and optionally `validate_TABLE.json` per measured table. Prints one line per file;
exit 1 if any differs.
"""

import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path

FILES = ("ranking.csv", "pareto.csv")
ROOT = Path(__file__).resolve().parents[2]
NEWER = {
    "exchange_overlap": "false",
    "cuda_graph": "none",
    "tp_overlap": "false",
    "cp_comm": "stack",
    "state_format": "stack",
    "fp8_attention": "false",
    "dispatch_backend": "stack",
    "microbatch_group": "0",
    "offload_modules": "none",
    "optimizer": "adam",
    "optimizer_offload": "0",
}
NEWER_KNOBS = tuple(word for name, value in NEWER.items() for word in ("--set", f"{name}={value}"))
"""Knobs that the other checkout may lack, at the values that mean what it searched."""
RUN = (sys.executable, "-m", "primus_search")


def same_space(baseline: Path, name: str) -> bool:
    """Whether a new run of a shipped space writes the same bytes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / name
        command = [
            *RUN,
            "run",
            str(ROOT / "spaces" / f"{name}.yaml"),
            "--bench",
            "off",
            "--out",
            str(out),
            "--framework",  # the baseline knew no frameworks
            "any",
            *NEWER_KNOBS,
        ]
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
        verdicts = {file: _known(out / file) == _known(baseline / name / file) for file in FILES}
    for file, is_same in verdicts.items():
        print(f"{name}/{file}: {'identical' if is_same else 'DIFFERENT'}", flush=True)
    return all(verdicts.values())


def _known(table: Path) -> list[dict[str, str]]:
    """Rows of a table without the columns of newer knobs."""
    with table.open(newline="", encoding="utf-8") as file:
        return [{k: v for k, v in row.items() if k not in NEWER} for row in csv.DictReader(file)]


def same_table(baseline: Path, name: str) -> bool:
    """Whether `validate --json` of a measured table gives the same values, to the last digit; new figures aside."""
    table = ROOT / "tests" / "oracle" / "data" / f"{name}.csv"
    done = subprocess.run([*RUN, "validate", str(table), "--json"], capture_output=True, cwd=ROOT, text=True)
    before = json.loads((baseline / f"validate_{name}.json").read_text())
    found = json.loads(done.stdout)
    is_same = {key: found.get(key) for key in before} == before
    print(f"validate {name}: {'identical' if is_same else 'DIFFERENT'}", flush=True)
    return is_same


def main() -> None:
    baseline, wanted = Path(sys.argv[1]), sys.argv[2:]
    spaces = [p.parent.name for p in sorted(baseline.glob("*/ranking.csv"))]
    tables = [p.stem.removeprefix("validate_") for p in sorted(baseline.glob("validate_*.json")) if p.stat().st_size]
    checks = [same_space(baseline, name) for name in spaces if not wanted or name in wanted]
    checks += [same_table(baseline, name) for name in tables if not wanted or name in wanted]
    sys.exit(0 if checks and all(checks) else 1)


if __name__ == "__main__":
    main()
