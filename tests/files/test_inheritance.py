"""`extends:` in stack and hardware files: what is taken from where, and what a message points at."""

from pathlib import Path

import pytest

from primus_search.base.errors import InputError
from primus_search.evidence.published.convert import measured_table
from primus_search.files.hardware_files import load_hardware, load_stack, read_stack
from primus_search.files.search_path import FileKind, names
from primus_search.files.source import read
from primus_search.values.machine.stack import GROUP_OF, GROUPS, number_of
from primus_search.values.measured_run import on_stack
from tools.docs.generated import documented

TRAINING = Path(__file__).parents[1] / "oracle" / "data" / "training_runs.csv"


def written(folder: Path, name: str, text: str) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(f"name: {name}\n{text}")
    return str(path)


def test_a_stack_has_its_own_numbers_and_the_rest_from_the_chain_of_files(tmp_path: Path) -> None:
    text = 'extends: megatron_te\nhost:\n  pass_ms: {value: 0.5, source: "ours"}\n'
    stack, sources = read_stack(written(tmp_path, "ours", text))
    parent = load_stack("megatron_te")
    assert (stack.name, stack.host.pass_s, stack.errors) == ("ours", 5e-4, {})
    others = [name for name in GROUP_OF if name != "pass_s"]
    assert [number_of(stack, name) for name in others] == [number_of(parent, name) for name in others]
    by_path = {one.path: one for one in sources}
    assert by_path["host.pass_ms"].inherited_from == ""
    assert "host.pass_us" not in by_path
    giver = {
        name: by_path[name].inherited_from for name in ("host.host_launch_us", "memory.weight_B", "host.cuda_graph")
    }
    assert giver == {"host.host_launch_us": "megatron_te", "memory.weight_B": "megatron", "host.cuda_graph": "pytorch"}


def test_hardware_extends_hardware_and_every_kernel_has_what_the_base_gives_to_any(tmp_path: Path) -> None:
    text = 'extends: b200\naccelerator:\n  hbm_GB: {value: 100, source: "ours"}\n'
    ours, base = load_hardware(written(tmp_path, "ours", text)), load_hardware("b200")
    assert (ours.name, ours.accelerator.name, ours.accelerator.hbm_bytes) == ("ours", "ours", 100e9)
    assert (ours.network, ours.default_stack) == (base.network, base.default_stack)
    found = {one.path: one for one in base.sources}
    small = found["accelerator.attention.kernels.cudnn.small_head_factor"]
    assert (small.value, small.inherited_from) == (1.0, "device")
    assert "any" not in base.accelerator.attention.kernels


VARIANTS = [
    f"{name}@{variant}"
    for name, path in names(FileKind.STACK).items()
    for variant in read(path).data.get("variants", {})
]


@pytest.mark.parametrize("reference", VARIANTS)
def test_a_variant_differs_from_its_file_in_what_it_lists_alone(reference: str) -> None:
    variant, plain = load_stack(reference), load_stack(reference.partition("@")[0])
    assert (variant.reference, variant.name, variant.errors) == (reference, plain.name, plain.errors)
    different = {name for name in GROUP_OF if number_of(variant, name) != number_of(plain, name)}
    assert different == set(variant.varied) and different


@pytest.mark.in_turn
def test_a_run_keeps_its_variant_on_other_software() -> None:
    run = next(run for run in measured_table(TRAINING).runs if run.cluster.stack.reference == "torchtitan@2025")
    assert run.overrides == ()
    assert on_stack(run, load_stack("fsdp_2024")).cluster.stack.kernels.attention_kernel == "sdpa"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("extends: pytoch\n", ":2 @ $.extends: unknown software stack 'pytoch'; did you mean 'pytorch'? - known: "),
        ("extends: [pytorch]\n", ":2 @ $.extends: expected the name of a file to take the rest from"),
        ("extends: ./ours.yaml\n", ":2 @ $.extends: './ours.yaml' extends this file in turn"),
        ("extends: ./none.yaml\n", ":2 @ $.extends: no such file './none.yaml'"),
        ("gemm_efficiency: 1\n",
         ":2 @ $.gemm_efficiency: belongs into the group efficiencies: write it below 'efficiencies:'"),
        ("kernels:\n  attention_kernel: flash2\n",
         f":1 @ $: {len(GROUP_OF) - 1} of {len(GROUP_OF)} numbers and habits are missing (has_fused_norm, "),
        ("extends: pytorch\n", ":1 @ $.kernels: missing key attention_kernel"),
        ("extends: pytorch\nhost: {host_launch_us: 3}\n", ":3 @ $.host.host_launch_us: missing source: write "),
    ],
)  # fmt: skip
def test_a_fault_is_told_where_it_is(tmp_path: Path, text: str, what: str) -> None:
    path = written(tmp_path, "ours", text)
    with pytest.raises(InputError) as caught:
        load_stack(path)
    assert f"{path}{what}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        (
            "torchtitan@2027",
            "@ $.variants: no variant '2027' - variants: 2025, 2026, eager, 2026-whole-loss, 2026-eager, 2025-eager",
        ),
        ("megatron_lm@2027", "@ $.variants: no variant '2027' - it has no variants"),
        ("torchtitn@2025", "unknown software stack 'torchtitn'; did you mean 'torchtitan'?"),
    ],
)
def test_an_unknown_variant_is_refused(name: str, what: str) -> None:
    with pytest.raises(InputError) as caught:
        load_stack(name)
    assert what in str(caught.value)


def test_a_variant_gives_groups_alone(tmp_path: Path) -> None:
    text = "extends: torchtitan\nvariants:\n  old: {name: older, kernels: {attention_kernel: sdpa}}\n"
    folder = tmp_path / "hardware" / "stacks"
    folder.mkdir(parents=True)
    written(folder, "ours", text)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(InputError) as caught:
        patch.setenv("PRIMUS_SEARCH_HOME", str(tmp_path))
        load_stack("ours@old")
    assert "$.variants.old.name: is no group of a stack; allowed: kernels," in str(caught.value)


def test_a_fault_in_a_parent_is_told_with_the_parents_file(tmp_path: Path) -> None:
    parent = written(tmp_path, "parent", "extends: torchtitan\nhost: {host_launch_us: 3}\n")
    with pytest.raises(InputError) as caught:
        load_stack(written(tmp_path, "child", "extends: ./parent.yaml\n"))
    assert str(caught.value).startswith(f"{parent}:3 @ $.host.host_launch_us: missing source")


def test_names_of_numbers_are_unique_over_groups_and_each_is_documented() -> None:
    fields = [name for cls in GROUPS.values() for name in documented(cls)]
    assert sorted(fields) == sorted(set(fields)) == sorted(GROUP_OF)


def test_no_field_of_a_stack_has_a_default() -> None:
    for cls in GROUPS.values():
        with pytest.raises(TypeError, match="missing"):
            cls()


def test_every_base_is_extended_by_some_stack() -> None:
    used = {one.inherited_from for name in names(FileKind.STACK) for one in read_stack(name)[1]}
    assert set(names(FileKind.STACK_BASE)) <= used
