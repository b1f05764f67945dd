"""The filter of the page takes the words that tables print, and says what it does not know (in node, where it is)."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from primus_search.report.html import modules
from tests.support.small_runs import make_run

NODE = shutil.which("node")
DRIVER = """
const found = {};
const data = JSON.parse(require("fs").readFileSync(0, "utf8"));
for (const text of data.texts) {
  found[text] = run(data.rows, text);
}
console.log(JSON.stringify(found));
function run(rows, text) {
  const columns = rows.columns, count = rows.count;
  const candidates = {
    count, labels: rows.labels, nicknames: rows.nicknames, plain: rows.plain, aliases: rows.aliases,
    coded: name => columns[name], isCoded: name => "codes" in columns[name],
    number: name => Float64Array.from(columns[name].numbers),
    named: text => {
      const name = text.toLowerCase(), full = rows.nicknames[name] ?? name;
      return Object.keys(columns).find(one => one.toLowerCase() === full);
    },
    labelled: isMatch => Uint8Array.from(rows.words, words => words.split(" ").some(isMatch) ? 1 : 0),
  };
  const {rows: kept, problems} = new Filter(candidates).matching(text);
  return {kept: Array.from(kept), problems};
}
"""


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_the_filter_takes_printed_words_and_flags_unknown_ones() -> None:
    script = "\n".join(modules("filter.js")) + DRIVER
    rows = {
        "count": 4,
        "nicknames": {"mbs": "micro_batch_size"},
        "plain": {"no deepep": ["deepep", "false"], "bf16": ["fp8", "none"]},
        "aliases": {"sharding": {"zero1": "distributed_optimizer"}},
        "labels": [{"reads": [], "words": {"": "TP1 deepep fp8:hybrid zero1"}}],
        "words": ["TP1 deepep zero1", "TP2 zero1", "TP1 fp8:hybrid fsdp2", "TP2 deepep fsdp2"],
        "columns": {
            "rank": {"numbers": [1, 2, 60, 0]},
            "deepep": {"values": [False, True], "codes": [1, 0, 0, 1]},
            "fp8": {"values": ["none", "hybrid"], "codes": [0, 0, 1, 0]},
            "sharding": {"values": ["distributed_optimizer", "fsdp2"], "codes": [0, 0, 1, 1]},
            "micro_batch_size": {"values": [1, 2], "codes": [0, 1, 0, 1]},
            "expected_tokens_per_s_per_gpu": {"numbers": [100, 90, 80, 70]},
        },
    }
    wanted: dict[str, list[int]] = {
        "deepep": [0, 3], "no deepep": [1, 2], "no deepep zero1": [1], "BF16": [0, 1, 3], "rank<=50": [0, 1],
        "sharding=zero1": [0, 1], "mbs=2": [1, 3], "speed>=85": [0, 1], "sharding!=zero1": [2, 3],
    }  # fmt: skip
    unknown = ["nonsense", "nonsense=3", "tokens>10000", "sharding=zero9"]
    done = subprocess.run(
        [str(NODE), "-e", script],
        input=json.dumps({"rows": rows, "texts": [*wanted, *unknown]}),
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    assert {text: found[text]["kept"] for text in wanted} == wanted
    assert all(not found[text]["problems"] for text in wanted)
    assert all(len(found[text]["problems"]) == 1 for text in unknown)


def test_words_of_tables_travel_with_the_page(tmp_path: Path) -> None:
    page = make_run(tmp_path) / "report.html"
    from primus_search.exploration.run_folder.saved_run import SavedRun
    from primus_search.report.html import write_report

    text = (page if page.exists() else write_report(SavedRun.open(page.parent))).read_text()
    data = json.loads(re.search(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    assert data["rows"]["plain"]["no deepep"] == ["deepep", "false"]
    assert data["rows"]["aliases"]["sharding"]["zero1"] == "distributed_optimizer"
