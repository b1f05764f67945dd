"""A layer is traced once: what the cache holds is what torch said, and nothing damaged or of another layer is taken."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from primus_search.measure import trace
from primus_search.measure.modules.shard import Shard
from primus_search.measure.trace_cache import traced_layer
from primus_search.measure.traced_layer import TracedLayer
from primus_search.models.model_files import load_model

MODEL = load_model("tiny")
SHARD = Shard(micro_batch_size=1, seq_length=256)


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Shard]:
    """An empty cache, and the shards that torch traced since."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    seen: list[Shard] = []
    plain = trace.trace_layer

    def traced(model: object, shard: Shard, kind: object) -> TracedLayer:
        seen.append(shard)
        return plain(model, shard, kind)  # type: ignore[arg-type]

    monkeypatch.setattr(trace, "trace_layer", traced)
    return seen


def test_a_layer_is_traced_once_and_another_shard_anew(traced: list[Shard]) -> None:
    first = traced_layer(MODEL, SHARD, MODEL.kinds[0])
    assert traced_layer(MODEL, SHARD, MODEL.kinds[0]) == first == trace.trace_layer(MODEL, SHARD, MODEL.kinds[0])
    assert traced[:-1] == [SHARD]
    longer = traced_layer(MODEL, replace(SHARD, seq_length=512), MODEL.kinds[0])
    assert longer.activation_bytes > first.activation_bytes


@pytest.mark.parametrize("damage", ["", "cut", "flipped"])
def test_a_damaged_file_is_traced_anew(traced: list[Shard], tmp_path: Path, damage: str) -> None:
    first = traced_layer(MODEL, SHARD, MODEL.kinds[0])
    (file,) = (one for one in tmp_path.rglob("traces/*/*") if one.is_file())
    text = file.read_text()
    file.write_text({"": "", "cut": text[:-9], "flipped": text[:-4] + chr(ord(text[-4]) ^ 1) + text[-3:]}[damage])
    assert traced_layer(MODEL, SHARD, MODEL.kinds[0]) == first
    assert len(traced) == 2
    assert file.read_text() == text


def test_a_cache_that_cannot_be_written_is_done_without(traced: list[Shard], tmp_path: Path) -> None:
    (tmp_path / "primus-search").write_text("a file where the folder would be")
    assert traced_layer(MODEL, SHARD, MODEL.kinds[0]) == traced_layer(MODEL, SHARD, MODEL.kinds[0])
    assert len(traced) == 2


@pytest.mark.in_turn
@pytest.mark.slow
def test_a_search_whose_layers_were_traced_loads_no_torch(tmp_path: Path) -> None:
    code = (
        "import os, sys; os.environ['XDG_CACHE_HOME'] = sys.argv[1]\n"
        "from primus_search import load_space, search\n"
        "search(load_space('spaces/llama3_8b_mi300x.yaml', overrides=['nodes=1', 'cp=1', 'recompute=none']))\n"
        "print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    loads = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1] for _ in range(2)]
    assert loads == ["True", "False"]
