"""A stack that no run was fitted to takes its numbers from others, and follows them when they are fitted anew."""

import re
import shutil
from pathlib import Path

from primus_search.files.search_path import FileKind, names
from tools.fit.training_run import write_copies

DATE = re.compile(r"\d{4}-\d\d-\d\d")
HARDWARE = Path(names(FileKind.STACK)["megatron_lm"]).parents[1]


def copied(tmp_path: Path) -> Path:
    shutil.copytree(HARDWARE / "stacks", tmp_path / "stacks")
    return tmp_path / "stacks"


def test_numbers_said_to_be_anothers_are_anothers(tmp_path: Path) -> None:
    stacks = copied(tmp_path)
    write_copies(tmp_path, "2026-11-21")
    for name in ("megatron_lm", "deepspeed", "automodel"):
        again, shipped = (folder / f"{name}.yaml" for folder in (stacks, HARDWARE / "stacks"))
        assert DATE.sub("", again.read_text()) == DATE.sub("", shipped.read_text())


def test_they_follow_when_the_other_is_fitted_anew(tmp_path: Path) -> None:
    stacks = copied(tmp_path)
    te, plain = stacks / "megatron_te.yaml", stacks / "megatron_lm.yaml"
    before = plain.read_text()
    lines = [
        '  gemm_efficiency: {value: 0.5, source: "fitted 2030-01-01"}' if line.startswith("  gemm_eff") else line
        for line in te.read_text().splitlines()
    ]
    te.write_text("\n".join(lines) + "\n")
    write_copies(tmp_path, "2030-01-01")
    assert 'gemm_efficiency: {value: 0.5, source: "as megatron_te, 2030-01-01"}' in plain.read_text()
    assert "gemm_efficiency: {value: 0.5, " not in before
    assert plain.read_text().count("\n") == before.count("\n")
