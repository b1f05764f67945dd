"""MaxText: printed seconds jump, because steps are dispatched asynchronously; the time stamps of the lines do not."""

from primus_search.learning.conclusion import conclude, product
from primus_search.learning.log_table import LogTable
from primus_search.learning.reading import Assumption, LogReading
from primus_search.learning.transcript import Transcript, observe_nothing
from primus_search.values.knobs.values import PARALLEL

MORE_AXES = {"tp": ("tensor_transpose", "tensor_sequence"), "cp": ("sequence",)}
"""Axes that split the same thing as the one of a degree, where a release prints them."""
SIZES = ("base_num_decoder_layers", "base_emb_dim", "base_mlp_dim", "base_num_query_heads", "base_num_kv_heads")


observe = observe_nothing


def conclude_run(table: LogTable, seen: Transcript) -> LogReading:
    """The run of a MaxText log. A mesh size of -1 (whatever is left) is not known."""
    facts = table.fields(seen)
    facts["model"] = {name: seen.whole(name) for name in (*SIZES, "vocab_size") if seen.whole(name)} | facts["model"]
    for name, word in PARALLEL.items():
        more = [axis for axis in MORE_AXES.get(name, ()) if f"ici_{axis}_parallelism" in seen.facts]
        sides = [f"{side}_{axis}_parallelism" for axis in (word, *more) for side in ("ici", "dcn")]  # of slices, across
        facts[name] = product(*map(seen.whole, sides))
    if facts["tp"] == facts["pp"] == facts["cp"] == 1 and seen.whole("gradient_accumulation_steps") == 1:
        facts["micro_batch_size"] = seen.whole("per_device_batch_size")
    assumed = {}
    step = seen.scratch.get("numbers", {})
    tokens = step.get("rate", 0.0) * step.get("s", 0.0)
    devices = step.get("weights", 0.0) / tokens if tokens > 0.0 else 0.0
    if facts["gpus"] is None and abs(devices - round(devices)) < 0.01 and round(devices) > 0:
        because = "tokens of a step over its time and the printed tokens/s/device; padding would make it smaller"
        assumed["gpus"] = Assumption(value=round(devices), because=because)
    return conclude(seen, table.name, facts, assumed, settings=table.settings)
