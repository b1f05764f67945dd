"""Space files: what is read from a good one, and the whole message of a bad one."""

import time
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pytest

from primus_search.base.errors import MOST_PROBLEMS, InputError
from primus_search.declare import load_space, make_space
from primus_search.declare.axes import AXIS
from primus_search.files.search_path import FileKind, names, title
from primus_search.space import AXES, Enumerator, Space, auto_values
from primus_search.space.context import FACTS
from primus_search.values.candidates import Fp8, Recompute, RecomputeMethod, Sharding
from primus_search.values.layout import BALANCED, EVEN, Layout
from primus_search.values.lengths import Lengths

MINIMAL = "model: llama3_8b\nhardware: h100\nworkload: {seq_length: 4096, global_batch_size: 128}\n"
TOP = (
    "name, model, vocab_size, ignore, hardware, nodes, gpus, price, goal, gpus_per_node, stack, site, framework, "
    "workload, space, constraints, search, benchmark"
)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str, **options: object) -> Space:
    Path("s.yaml").write_text(text)
    return load_space("s.yaml", environ={}, **options)  # type: ignore[arg-type]


def message(text: str, **options: object) -> str:
    with pytest.raises(InputError) as caught:
        load(text, **options)
    return str(caught.value)


def axis(text: str, name: str) -> tuple[object, ...]:
    return load(f"{MINIMAL}space:\n  {name}: {text}\n").axis(name).values


# --- good files ----------------------------------------------------------------------------------------------------


def test_model_hardware_and_workload_are_a_valid_space() -> None:
    space = load(MINIMAL)
    assert space.name == "llama3_8b on h100"
    assert (space.model.name, space.cluster.world, space.workload.global_batch_size) == ("llama3_8b", 8, 128)
    for name in AXES:
        assert space.axis(name).values == auto_values(name, space.model, space.cluster, space.workload, space.framework)


def test_every_axis_of_the_space_can_be_written() -> None:
    assert set(AXIS) == set(AXES)


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("tp", "4", (4,)),
        ("tp", "[4, 2, 4]", (4, 2)),
        ("tp", "powers_of_two", (1, 2, 4, 8, 16, 32)),
        ("vpp", "divisors", (1, 2, 4, 8, 16, 32)),
        ("pp", "[8, auto]", (8, 1, 2, 4)),
        ("deepep", "[no, yes]", (False, True)),
        ("fp8", "[none, hybrid, blockwise]", (Fp8.NONE, Fp8.HYBRID, Fp8.BLOCKWISE)),
        ("schedule", "[zerobubble, zb-h1, 1f1b]", ("zb-h1", "1f1b")),
        ("sharding", "[none, fsdp2]", (Sharding.NONE, Sharding.FSDP2)),
        ("recompute", "selective", (Recompute.CORE_ATTENTION,)),
        ("recompute", "[mlp+layernorm]", (Recompute.MLP | Recompute.LAYERNORM,)),
        ("pipeline_layout", "[even, balanced, {first: 6}]", (EVEN, BALANCED, Layout("ends", 6, None))),
        ("pipeline_layout", "['Et*16|t*16L']", (Layout("string", text="Et*16|t*16L"),)),
        ("pipeline_layout", "['first=2,last=3']", (Layout("ends", 2, 3),)),
    ],
)  # fmt: skip
def test_an_axis_is_a_value_a_list_or_a_word(name: str, text: str, values: tuple[object, ...]) -> None:
    assert axis(text, name) == values


def test_full_recompute_brings_its_number_of_layers_and_method() -> None:
    space = load(f"{MINIMAL}space: {{recompute: [none, {{full: [all, 2], method: [uniform, block]}}]}}\n")
    assert space.axis("recompute").values == (Recompute.NONE, Recompute.FULL)
    assert space.axis("recompute_num_layers").values == (0, 2)
    assert space.axis("recompute_method").values == (RecomputeMethod.UNIFORM, RecomputeMethod.BLOCK)


def test_full_recompute_without_a_number_means_every_layer() -> None:
    assert load(f"{MINIMAL}space: {{recompute: full}}\n").axis("recompute_num_layers").values == (0,)


def test_hsdp_brings_its_group() -> None:
    space = load(f"{MINIMAL}space: {{sharding: [fsdp2, {{hsdp: [4, 8]}}]}}\n")
    assert space.axis("sharding").values == (Sharding.FSDP2, Sharding.HSDP)
    assert space.axis("shard_group").values == (4, 8)


def test_nodes_hardware_stack_and_their_numbers_are_axes() -> None:
    text = MINIMAL.replace("h100", "[h100, mi300x]") + "nodes: [1, 2]\nspace: {hardware.nic_GBps: [50, 100]}\n"
    choices = load(text).clusters
    assert len(choices) == 8
    assert choices[1].labels == (
        ("nodes", 1),
        ("hardware", "H100"),
        ("stack", "megatron_core_2026"),
        ("hardware.nic_GBps", 100),
    )
    assert choices[1].cluster.network.nic_bytes_per_s == 100e9
    assert {choice.cluster.world for choice in choices} == {8, 16}


def test_using_fewer_devices_of_a_node_shrinks_its_domain_and_keeps_the_share_of_nics() -> None:
    network = load(f"{MINIMAL}gpus_per_node: 4\n").cluster.network
    assert (network.gpus_per_node, network.domain_size, network.nics_per_node) == (4, 4, 4)


def test_a_space_made_in_python_is_the_one_of_the_file() -> None:
    made = make_space(
        {"model": "llama3_8b", "hardware": "h100", "workload": {"seq_length": 4096, "global_batch_size": 128}},
        environ={},
    )
    assert made.axes == load(MINIMAL).axes


@pytest.mark.daily(5)
@pytest.mark.parametrize("name", [name for name in names(FileKind.SPACE) if name != "tiny_host"])
def test_every_space_that_ships_has_legal_candidates(name: str) -> None:
    assert Enumerator(load_space(name, environ={})).size > 0


def test_a_batch_that_only_splits_with_pipeline_stages_keeps_its_candidates() -> None:
    """NVIDIA's published 405B job: 576 H100, tp 8, pp 9, cp 2, 252 sequences; 252 does not divide by 576."""
    job = ["tp=8", "pp=9", "cp=2", "micro_batch_size=1", "vpp=[1, 7]"]
    assert Enumerator(load_space("llama3.1_405b_h100", environ={}, overrides=job)).size > 0


# --- flags and environment -----------------------------------------------------------------------------------------


def test_flags_win_over_the_environment_and_that_over_the_file() -> None:
    Path("s.yaml").write_text(f"{MINIMAL}nodes: 1\nspace: {{tp: 1, pp: 1, ep: 1}}\n")
    environ = {"NNODES": "2", "PRIMUS_TP": "2", "PRIMUS_PP": "2", "GPUS_PER_NODE": "4", "PRIMUS_EP": ""}
    space = load_space("s.yaml", nodes=8, overrides=["tp=[4, 8]", "search.top_k=3", "seq_length=8192"], environ=environ)
    assert space.cluster.num_nodes == 8
    assert space.axis("tp").values == (4, 8)
    assert space.axis("pp").values == (2,)
    assert space.axis("ep").values == (1,)
    assert space.cluster.network.gpus_per_node == 4
    assert (space.search.top_k, space.workload.seq_length) == (3, 8192)
    assert [(won.key, won.value, won.origin) for won in space.overrides] == [
        ("space.pp", "2", "$PRIMUS_PP"),
        ("gpus_per_node", "4", "$GPUS_PER_NODE"),
        ("space.tp", "[4, 8]", "--set tp=[4, 8]"),
        ("search.top_k", "3", "--set search.top_k=3"),
        ("workload.seq_length", "8192", "--set seq_length=8192"),
        ("nodes", "8", "--nodes"),
    ]


def test_a_bad_override_points_at_the_flag_or_variable() -> None:
    Path("s.yaml").write_text(MINIMAL)
    with pytest.raises(InputError) as caught:
        load_space("s.yaml", nodes=0, overrides=["tp=x"], environ={"PRIMUS_EP": "many"})
    allowed = "allowed: whole numbers of at least 1, auto, divisors or powers_of_two"
    assert str(caught.value) == (
        f"$PRIMUS_EP @ $.space.ep: 'many' is not a value of ep - {allowed}\n"
        f"--set tp=x @ $.space.tp: 'x' is not a value of tp - {allowed}\n"
        "--nodes @ $.nodes: must be at least 1, got 0"
    )


def test_a_flag_that_cannot_be_read_says_how_to_write_it() -> None:
    flags = ["tp", "tpp=3", "pp=[1", "x.y=1", "--nodes nodes=[8,,16]", "--seed search.seed=x", "vpp=none"]
    assert message(MINIMAL, overrides=flags) == (
        "--seed @ $.search.seed: expected a whole number, got 'x'\n"
        "--set tp: write --set key=value, for example --set tp=8\n"
        "--set tpp=3: unknown key 'tpp'; did you mean 'tp'?\n"
        "--set pp=[1: is not valid YAML: did not find expected ',' or ']'\n"
        "--set x.y=1: unknown key 'x.y'\n"
        "--nodes: is not valid YAML: did not find expected node content\n"
        "--set vpp=none @ $.space.vpp: 'none' is not a value of vpp - "
        "allowed: whole numbers of at least 1, auto, divisors or powers_of_two"
    )


@pytest.mark.parametrize(
    ("given", "shown"),
    [("qwen2.5_7b", "qwen2.5_7b"), ("new/config.json", "new"), ("a/b.yaml", "b"), ("Llama-3.1-8B", "Llama-3.1-8B")],
)
def test_a_title_leaves_out_folders_and_endings_but_no_part_of_a_version(given: str, shown: str) -> None:
    assert title(given) == shown


# --- bad files -----------------------------------------------------------------------------------------------------


NEAR_MIXTRAL = ", ".join(get_close_matches("mixtral_8x22", names(FileKind.MODEL), 10, cutoff=0.0))


def test_every_problem_of_a_file_comes_at_once_in_the_order_of_the_file() -> None:
    text = """\
nmae: typo
model: mixtral_8x22
hardware: mi355
nodes: 0
workload: {seq_length: "8192", global_batch_size: 1024.5}
objectve: tokens_per_s
space:
  tp: [1, 3x, 0]
  ttp: 4
  fp8: hybird
  deepep: maybe
  sync_free_stage: 4
  hardware.nic_GBpss: 3
  hardware.nic_GBps: [fast]
constraints: [tp * epp < 3]
search: {method: bayes, memory_margin: 1.5, top_k: 0}
"""
    columns = "dp, edp, microbatches, layers_per_stage, most_layers, cp_inner_ranks, world, nodes, gpus_per_node, "
    columns += (
        "gpus_per_domain, host_copy_GBps, host_update_GBps, loss_chunks, seq_length, num_experts, expert_ffn_hidden, "
    )
    columns += "num_kv_heads, num_mtp_layers, num_scan_heads, num_scan_groups, " + ", ".join(FACTS)
    assert message(text).splitlines() == [
        f"s.yaml:1 @ $.nmae: unknown key; did you mean 'name'? - allowed: {TOP}",
        "s.yaml:2 @ $.model: unknown model preset 'mixtral_8x22'; did you mean 'mixtral_8x22b'? - "
        f"known: {NEAR_MIXTRAL} ... ({len(names(FileKind.MODEL))} in all: primus-search models)",
        "s.yaml:3 @ $.hardware: unknown hardware file 'mi355'; did you mean 'mi355x'? - "
        f"known: {', '.join(names(FileKind.HARDWARE))}; for another device write a file that extends the nearest of "
        "these: docs/own_hardware.md",
        "s.yaml:4 @ $.nodes: must be at least 1, got 0",
        "s.yaml:5 @ $.workload.seq_length: expected a whole number, got '8192'",
        "s.yaml:5 @ $.workload.global_batch_size: expected a whole number, got 1024.5",
        f"s.yaml:6 @ $.objectve: unknown key; did you mean 'search.objective'? - allowed: {TOP}",
        "s.yaml:8 @ $.space.tp[1]: '3x' is not a value of tp - "
        "allowed: whole numbers of at least 1, auto, divisors or powers_of_two",
        "s.yaml:8 @ $.space.tp[2]: 0 is not a value of tp - "
        "allowed: whole numbers of at least 1, auto, divisors or powers_of_two",
        f"s.yaml:9 @ $.space.ttp: unknown axis; did you mean 'tp'? - allowed: {', '.join(AXES)}",
        "s.yaml:10 @ $.space.fp8: 'hybird' is not a value of fp8; did you mean 'hybrid'? - "
        "allowed: none, hybrid, delayed, blockwise, rowwise, mxfp8, nvfp4, mxfp4 or auto",
        "s.yaml:11 @ $.space.deepep: 'maybe' is not a value of deepep - allowed: true, false or auto",
        "s.yaml:12 @ $.space.sync_free_stage: 4 is not a value of sync_free_stage - allowed: 0, 1, 2, 3 or auto",
        "s.yaml:13 @ $.space.hardware.nic_GBpss: unknown hardware number; did you mean 'hardware.nic_GBps'?",
        "s.yaml:14 @ $.space.hardware.nic_GBps[0]: expected a number, got 'fast'",
        "s.yaml:15 @ $.constraints[0]: 'tp * epp < 3': unknown name 'epp'; did you mean 'pp'? - "
        f"known: {', '.join(AXES)}, {columns} (at character 6)",
        "s.yaml:16 @ $.search.method: 'bayes' is not one of auto, exhaustive, tpe, nsga2, nsga3, gp, qmc or random",
        "s.yaml:16 @ $.search.memory_margin: must be below 1.0, got 1.5",
        "s.yaml:16 @ $.search.top_k: must be at least 1, got 0",
    ]


NEEDS = "missing key; a space needs model, hardware and workload with seq_length and global_batch_size"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "s.yaml @ $: expected a mapping with model, hardware and workload; got nothing"),
        ("- 3", "s.yaml:1 @ $: expected a mapping with model, hardware and workload; got a list"),
        ("hardware: h100\nworkload: {seq_length: 8}", f"s.yaml:1 @ $.model: {NEEDS}\n"
         f"s.yaml:2 @ $.workload.global_batch_size: {NEEDS}"),
        (f"{MINIMAL}hardware: 3", "s.yaml:4 @ $.hardware: duplicate key with another value than on line 2; keep one"),
        (f"{MINIMAL}nodes: []", "s.yaml:4 @ $.nodes: is an empty list; give at least one number"),
        (f"{MINIMAL}nodes: [1, -1]", "s.yaml:4 @ $.nodes[1]: must be at least 1, got -1"),
        (f"{MINIMAL}nodes: many", "s.yaml:4 @ $.nodes: expected a whole number or a list, got 'many'"),
        (f"{MINIMAL}tp: 8", f"s.yaml:4 @ $.tp: unknown key; did you mean 'space.tp'? - allowed: {TOP}"),
        (f"{MINIMAL}space: {{tp: []}}", "s.yaml:4 @ $.space.tp: is an empty list; give at least one value - "
         "allowed: whole numbers of at least 1, auto, divisors or powers_of_two"),
        (f"{MINIMAL}space: {{recompute: {{full: all}}, recompute_num_layers: 3}}",
         "s.yaml:4 @ $.space.recompute_num_layers: is given twice: here and inside another axis; keep one"),
        (f"{MINIMAL}space: {{pipeline_layout: Et*3|t*4L}}",
         "s.yaml:4 @ $.space.pipeline_layout: deals 7 layers, the model has 32; count the letters t"),
        (f"{MINIMAL}space: {{offload_modules: ''}}", "s.yaml:4 @ $.space.offload_modules: '' is not a value of "
         "offload_modules - allowed: none, modules joined by '+' (attn_norm, qkv_linear, core_attn, attn_proj, "
         "mlp_norm, expert_fc1, moe_act), layer_input or auto"),
        (f"{MINIMAL}space: {{fp8: divisors}}", "s.yaml:4 @ $.space.fp8: 'divisors' is not a value of fp8 - "
         "allowed: none, hybrid, delayed, blockwise, rowwise, mxfp8, nvfp4, mxfp4 or auto"),
        (f"{MINIMAL}nodes: 3\nspace: {{tp: 1, pp: 1, cp: 1, micro_batch_size: [2, 4]}}",
         "s.yaml:3 @ $.workload.global_batch_size: 128 samples do not split into whole micro-batches: "
         "dp * micro_batch_size is 48 or 96 in this space; use 96 or 144, or change nodes or these axes"),
        (f"{MINIMAL}nodes: 3\nspace: {{tp: 16}}",
         "s.yaml:4 @ $.nodes: no tp * pp * cp of this space divides the 24 devices of the cluster; "
         "change nodes or these axes"),
        (f"{MINIMAL}stack: megatron_core_2062", "s.yaml:4 @ $.stack: unknown software stack 'megatron_core_2062'; "
         f"did you mean 'megatron_core_2026'? - known: {', '.join(names(FileKind.STACK))}"),
        (MINIMAL.replace("llama3_8b", "missing/model.yaml"), "s.yaml:1 @ $.model: no such file 'missing/model.yaml'"),
        (MINIMAL.replace("h100", "./h1000.yaml"), "s.yaml:2 @ $.hardware: no such file './h1000.yaml'"),
    ],
)  # fmt: skip
def test_a_bad_file_says_where_what_and_what_to_do(text: str, what: str) -> None:
    assert message(text) == what


def test_a_missing_or_unknown_space_is_one_sentence() -> None:
    known = ", ".join(names(FileKind.SPACE))
    unknown = f"space: unknown space file 'mixtral'; did you mean 'mixtral_8x22b'? - known: {known}"
    for name, what in (("none.yaml", "none.yaml: no such file"), ("mixtral", unknown)):
        with pytest.raises(InputError) as caught:
            load_space(name)
        assert str(caught.value) == what


def test_models_that_extend_themselves_are_refused() -> None:
    Path("a.yaml").write_text("extends: [b.yaml]\n")
    Path("b.yaml").write_text("num_layers: 3\nextends:\n  - a.yaml\n")
    assert message(MINIMAL.replace("llama3_8b", "a.yaml")) == (
        "a.yaml:1 @ $: extends itself: a.yaml -> b.yaml -> a.yaml; break the cycle"
    )


def test_an_axis_that_a_framework_has_no_key_for_has_its_plain_value() -> None:
    """torchtitan 0.2.2 has no key for `tp_overlap`, on where there is a choice: tensor parallelism stays legal."""
    space = make_space(
        {"model": "llama3_8b", "hardware": "h100", "nodes": 1, "framework": "torchtitan@0.2.2",
         "workload": {"seq_length": 4096, "global_batch_size": 64}, "space": {"pp": 1, "cp": 1}}
    )  # fmt: skip
    assert space.axis("tp_overlap").values == (False,)
    enumerator = Enumerator(space)
    assert set(enumerator.chunk(0, enumerator.size).candidates.tp.tolist()) == {1, 2, 4, 8}


@pytest.mark.parametrize("framework", ["megatron", "nemo", "primus"])
def test_auto_is_widened_by_what_a_written_value_needs(framework: str, tmp_path: Path) -> None:
    """Megatron's Muon runs without sharded state alone, which `auto` of `sharding` leaves out otherwise."""
    hardware = "mi300x" if framework == "primus" else "h100"
    path = tmp_path / "space.yaml"
    text = (
        f"model: llama3_8b\nhardware: {hardware}\nframework: {framework}\nnodes: 2\nspace: {{optimizer: OPTIMIZER}}\n"
    )
    text += "workload: {seq_length: 4096, global_batch_size: 64}\n"
    found = {}
    for optimizer in ("adam", "dist_muon", "[adam, dist_muon]"):
        path.write_text(text.replace("OPTIMIZER", optimizer))
        found[optimizer] = {a.name: a.values for a in load_space(path, environ={}).axes}["sharding"]
    assert Sharding.NONE not in found["adam"]
    assert found["dist_muon"] == found["[adam, dist_muon]"] == (*found["adam"], Sharding.NONE)


UNKNOWN = "".join(f"{{0}}tensor_parallel_{n}: 1\n" for n in range(20_000))


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "text",
    [UNKNOWN.format(""), MINIMAL + UNKNOWN.format(""), f"{MINIMAL}space:\n{UNKNOWN.format('  ')}",
     f"{MINIMAL}search:\n{UNKNOWN.format('  ')}"],
    ids=["alone", "beside", "axes", "search"],
)  # fmt: skip
def test_a_file_of_another_kind_is_refused_soon_and_shortly(text: str) -> None:
    begin = time.process_time()
    said = message(text)
    assert time.process_time() - begin < 6.0
    lines = said.splitlines()
    assert len(lines) <= MOST_PROBLEMS + 1 and len(said) < 20_000
    assert lines[-1].startswith("and 19,9") and lines[-1].endswith("more problems")


@pytest.mark.parametrize(
    "line", ["constraints: ['{}']", "name: '{}'", "workload: {{seq_length: '{}'}}", "model: '{}'", "'{}': 1"]
)
def test_a_long_value_is_cut_in_the_message(line: str) -> None:
    for value in ("x" * 200_000, "tp == 1 and " * 15_000):
        assert len(message(MINIMAL.replace("model: llama3_8b\n", "") + line.format(value))) < 20_000


def test_a_node_larger_than_the_hardwares_keeps_its_domain_and_is_noted() -> None:
    space = make_space(
        {
            "model": "llama3_8b",
            "hardware": "h100",
            "workload": {"seq_length": 4096, "global_batch_size": 128},
            "gpus_per_node": 16,
        },
        environ={},
    )
    network = space.cluster.network
    assert (network.gpus_per_node, network.domain_size, space.cluster.world) == (16, 8, 16)
    assert any("nodes of 16 devices" in note for note in space.notes)


# --- what is trained --------------------------------------------------------------------------------------------------

TUNED = {"model": "llama3.1_8b", "hardware": "mi300x", "workload": {"seq_length": 2048, "global_batch_size": 64}}


def tuned(model: str = "llama3.1_8b", **workload: object) -> Space:
    return make_space(TUNED | {"model": model, "workload": {**TUNED["workload"], **workload}}, environ={})


def test_a_task_of_adapters_freezes_the_weights_of_the_model() -> None:
    space = tuned(task="lora", lora={"rank": 8, "modules": ["q_proj", "v_proj"]})
    assert space.model.adapters is not None
    assert space.model.adapters.modules == ("linear_q", "linear_v")
    assert space.model.trained_params == 32 * 8 * (2 * 4096 + 4096 + 1024)
    assert space.job.model.adapters == space.model.adapters
    assert [one.text for one in space.constraints] == ["8 % tp == 0"]
    assert tuned(task="sft").model.adapters is None


def test_modules_that_are_left_out_are_those_that_the_model_has() -> None:
    assert tuned("qwen3_30b_a3b", task="lora").model.adapters.modules == (
        "linear_qkv", "linear_proj", "shared_expert_adapters",
    )  # fmt: skip
    every = tuned("qwen3_30b_a3b", task="lora", lora={"modules": ["all-linear"]})
    assert every.model.adapters.modules == ("linear_q", "linear_k", "linear_v", "linear_proj", "experts")


def test_weights_of_qlora_are_held_in_four_bits_unless_said_otherwise() -> None:
    assert tuned(task="qlora").model.adapters.base.bytes_per_param == pytest.approx(
        0.5 + 1 / 64 + 4 / (64 * 256), abs=1e-5
    )
    assert tuned(task="qlora", lora={"base": "int8"}).model.adapters.base.bytes_per_param == 1.0


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"lora": {"rank": 8}}, "is of the tasks lora, qlora, dpo, grpo or ppo, not pretrain"),
        ({"task": "lora", "lora": {"modules": ["experts"]}}, "llama3.1_8b has no experts"),
        (
            {"task": "lora", "lora": {"base": "nf5"}},
            "base 'nf5' is none of bf16, nf4, nf4_single, int8; did you mean 'nf4'?",
        ),
        ({"task": "distil"}, "'distil' is not one of pretrain, sft, lora, qlora, dpo, grpo or ppo"),
        ({"task": "lora", "lora": {"rang": 8}}, "unknown key; did you mean 'rank'?"),
    ],
)
def test_what_cannot_be_trained_is_refused(workload: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        tuned(**workload)
    assert message in str(caught.value)


def test_a_framework_without_adapters_is_refused_and_another_is_assumed() -> None:
    with pytest.raises(InputError, match="has no adapters of lora; use nemo, primus or any"):
        make_space(TUNED | {"framework": "torchtitan", "workload": {**TUNED["workload"], "task": "lora"}}, environ={})
    nvidia = TUNED | {"hardware": "h100", "workload": {**TUNED["workload"], "task": "lora"}}
    assert make_space(nvidia, environ={}).framework.name == "nemo"


def test_an_entry_that_is_listed_twice_is_searched_once() -> None:
    data = LISTED | {"hardware": ["h100", "h100"], "framework": ["megatron", "megatron"], "nodes": [2, 4, 2]}
    space = make_space(data)
    assert [one.cluster.num_nodes for one in space.clusters] == [2, 4]
    twice = [note for note in space.notes if "more than once" in note]
    assert len(twice) == 3


def test_a_framework_is_searched_where_it_runs_and_refused_where_it_runs_nowhere() -> None:
    both = LISTED | {"hardware": ["h100", "mi300x"]}
    space = make_space(both | {"framework": ["nemo", "megatron", "primus"]})
    pairs = [(one.cluster.accelerator.name, one.framework.launcher) for one in space.clusters]
    assert pairs == [("H100", "nemo"), ("H100", "megatron"), ("MI300X", "megatron"), ("MI300X", "primus")]
    assert sum("not searched there" in note for note in space.notes) == 2
    for wrong in ({"framework": ["nemo"]}, {"framework": ["megatron", "primus"], "hardware": ["h100", "b200"]}):
        with pytest.raises(InputError, match="does not run on"):
            make_space(both | wrong)


LISTED: dict[str, Any] = {
    "model": "llama3_8b",
    "hardware": "h100",
    "nodes": 2,
    "workload": {"seq_length": 4096, "global_batch_size": 64},
    "space": {"tp": [1, 2]},
}


@pytest.mark.parametrize(
    "given, what",
    [
        ({"document_length": 0.5}, "is at least 1 token, or 0 where a sample is one document, not 0.5"),
        ({"packing": "whole"}, "is needed by packing: whole; give a number"),
        ({"document_length": 900, "balanced_packing": True}, "balanced_packing needs the distribution of lengths"),
        ({"document_length": {"quantiles": {"p50": 900}}}, "quantiles are at least two lengths that rise"),
        ({"document_length": {"quantiles": {"x": 900, "p100": 1}}}, "quantiles: 'x' is no percentile such as p50"),
        ({"document_length": {"mean": 900}}, "is a number, {quantiles: {p50: 900, p100: 8192}}"),
        ({"document_length": "megatron_mok_8k"}, "did you mean 'megatron_mock_8k'?"),
        ({"document_length": [1, 2]}, "expected a number, a word or a mapping, got a list"),
        ({"document_length": 900, "packing": "all"}, "'all' is not one of cut, whole, token_budget"),
    ],
)  # fmt: skip
def test_lengths_that_cannot_be_are_refused(given: dict[str, Any], what: str) -> None:
    data = {
        "model": "llama3.1_8b",
        "hardware": "h100",
        "workload": {"seq_length": 8192, "global_batch_size": 64} | given,
    }
    with pytest.raises(InputError) as caught:
        make_space(data)
    assert what in str(caught.value)


def test_lengths_are_read_from_files(tmp_path: Path) -> None:
    files = {
        "lengths.txt": ("", "512\n512\n\n2048\n"),
        "data.jsonl": (":tokens", '{"tokens": 512}\n{"tokens": 512}\n{"tokens": ' + str([1] * 2048) + "}\n"),
        "set.yaml": ("", "source: own data, 2026-11\nhistogram: {512: 2, 2048: 1}\n"),
    }
    for name, (key, text) in files.items():
        (tmp_path / name).write_text(text)
        space = tmp_path / "space.yaml"
        space.write_text(
            f"{{model: llama3.1_8b, hardware: h100, workload: {{seq_length: 8192, global_batch_size: 64, "
            f"document_length: '{name}{key}', packing: whole}}}}"
        )
        workload = load_space(space, environ={}).workload
        assert workload.lengths is not None and workload.lengths.tokens == (512.0, 2048.0)
        assert workload.document_length == (2 * 512**2 + 2048**2) / (2 * 512 + 2048)


def test_a_file_of_lengths_is_found_beside_the_space_or_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spaces").mkdir()
    space = tmp_path / "spaces" / "one.yaml"
    workload = "{seq_length: 4096, global_batch_size: 8, document_length: lengths.txt}"
    space.write_text(f"model: llama3.1_8b\nhardware: h100\nnodes: 1\nworkload: {workload}\n", encoding="utf-8")
    (tmp_path / "lengths.txt").write_text("100\n300\n", encoding="utf-8")
    assert load_space(space, environ={}).workload.lengths == Lengths((100.0, 300.0), (0.5, 0.5))
    (tmp_path / "spaces" / "lengths.txt").write_text("200\n400\n", encoding="utf-8")
    assert load_space(space, environ={}).workload.lengths == Lengths((200.0, 400.0), (0.5, 0.5))
