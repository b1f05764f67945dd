"""Measured calls before laws: exact where measured, the law far away, between the two in between; and their file."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from primus_search.analysis.kernel_evidence import kernel_evidence, sentence
from primus_search.base.errors import InputError
from primus_search.cli import app
from primus_search.cost.laws.attention import attention_s
from primus_search.cost.laws.collectives import Group, all_gather_s, all_reduce_s, reduce_scatter_s, send_s
from primus_search.cost.laws.expert_products import expert_products_s
from primus_search.cost.laws.gemm import GemmPass, gemm_s
from primus_search.cost.laws.measured_correction import is_measured, measured_over_law
from primus_search.cost.project import Projector
from primus_search.files.evidence_files import read_tables
from primus_search.files.hardware_files import load_cluster, load_hardware
from primus_search.measure.device.device_table import COLUMNS
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates, Fp8
from primus_search.values.job import Job
from primus_search.values.machine.kernel_tables import KernelTable
from primus_search.values.workload import Workload

HEADER = ",".join(COLUMNS)


def line(**columns):
    return ",".join(str(columns.get(name, "")) for name in COLUMNS)


def gemm_line(m, n, k, op="fwd", tflops=100.0, dtype="bf16"):
    return line(
        kind="gemm", gpu="H100", dtype=dtype, op=op, m=m, n=n, k=k, value=tflops, unit="TFLOP/s", source="a test"
    )


def with_table(tmp_path, *lines):
    """The H100's file with these rows as its table."""
    text = load_hardware("h100").path.read_text(encoding="utf-8")
    (tmp_path / "h100.csv").write_text("\n".join([HEADER, *lines, ""]), encoding="utf-8")
    path = tmp_path / "h100.yaml"
    path.write_text(text.replace("\naccelerator:", "\ntables: h100.csv\n\naccelerator:", 1), encoding="utf-8")
    return load_hardware(str(path))


def law(m):
    return 2.0 * np.asarray(m)


TABLE = KernelTable(kind="x", shapes=((1.0,), (4.0,), (16.0,)), seconds=(2.0, 16.0, 16.0))


def test_at_a_measured_shape_the_factor_is_measured_over_law():
    assert measured_over_law(TABLE, law, np.array([1.0, 4.0, 16.0])) == pytest.approx([1.0, 2.0, 0.5])


def test_far_from_every_measured_shape_the_law_stands_alone():
    assert measured_over_law(TABLE, law, np.array([1.0 / 64, 1024.0])).tolist() == [1.0, 1.0]
    assert not is_measured(TABLE, np.array([1.0 / 64, 1024.0])).any()
    assert is_measured(TABLE, np.array([2.0, 8.0])).all()


def test_between_measured_shapes_the_factor_lies_between_theirs():
    between = measured_over_law(TABLE, law, np.geomspace(1.01, 3.99, 20))
    assert np.all((between >= 0.5) & (between <= 2.0)) and np.all(np.diff(between) > 0)


def test_without_a_table_nothing_changes():
    assert measured_over_law(None, law, 3.0) == 1.0


def test_a_measured_gemm_and_its_gradients_take_what_was_measured(tmp_path):
    m, n, k = 8192, 4096, 14336
    slow = with_table(tmp_path, gemm_line(m, n, k), gemm_line(m, n, k, op="bwd", tflops=50.0)).accelerator
    plain = load_hardware("h100").accelerator
    flops = 2.0 * m * n * k
    assert float(gemm_s(slow, m, n, k)) == pytest.approx(flops / 100e12)
    both = gemm_s(slow, m, k, n, gemm_pass=GemmPass.INPUT_GRAD) + gemm_s(slow, n, k, m, gemm_pass=GemmPass.WEIGHT_GRAD)
    assert float(both) == pytest.approx(2.0 * flops / 50e12)
    assert gemm_s(slow, m, n, k, Fp8.HYBRID) == gemm_s(plain, m, n, k, Fp8.HYBRID)
    assert gemm_s(slow, m / 64, n, k) == gemm_s(plain, m / 64, n, k)


def test_measured_attention_stands_for_its_own_kernel_and_mask_only(tmp_path):
    row = line(kind="attention", gpu="H100", dtype="bf16", op="fwd_torch_sdpa", seq=4096, head_dim=128, heads=32,
               batch=1, causal="true", value=200.0, unit="TFLOP/s", source="a test")  # fmt: skip
    slow, plain = with_table(tmp_path, row).accelerator, load_hardware("h100").accelerator
    call = {"batch": 1, "heads": 32, "kv_heads": 8, "seq_q": 4096, "seq_kv": 4096, "qk_dim": 128, "v_dim": 128}
    kernel = "sdpa"
    assert float(attention_s(slow, kernel, **call).forward_s) == pytest.approx(
        float(attention_s(plain, kernel, **call).forward_s)
        * (4.0 * 32 * 128 * 4096**2 / 2 / 200e12)
        / float(attention_s(plain, kernel, **(call | {"kv_heads": 32})).forward_s)
    )
    windowed = call | {"window": 1024}
    assert attention_s(slow, kernel, **windowed).forward_s == attention_s(plain, kernel, **windowed).forward_s


def test_measured_experts_take_what_was_measured(tmp_path):
    row = line(kind="grouped_gemm", gpu="H100", dtype="bf16", op="fwd", m=512, n=28672, k=4096, batch=8, value=77.0,
               unit="TFLOP/s", source="a test")  # fmt: skip
    slow = with_table(tmp_path, row).accelerator
    assert float(expert_products_s(slow, 512, 8, 28672, 4096)) == pytest.approx(2.0 * 8 * 512 * 28672 * 4096 / 77e12)


def test_measured_collectives_stand_for_groups_inside_the_domain(tmp_path):
    rows = [
        line(
            kind="collective",
            gpu="H100",
            op=op,
            num_gpus=8,
            message_bytes=1 << 26,
            value=us,
            unit="us",
            source="a test",
        )
        for op, us in (("all_reduce", 900.0), ("reduce_scatter", 700.0))
    ]
    rows.append(
        line(kind="collective", op="send", num_gpus=2, message_bytes=1 << 26, value=500.0, unit="us", source="a test")
    )
    slow, plain = with_table(tmp_path, *rows).network, load_hardware("h100").network
    size, inside, across = float(1 << 26), Group(8, 1), Group(16, 1)
    assert float(all_reduce_s(slow, size, inside)) == pytest.approx(900e-6)
    assert float(reduce_scatter_s(slow, size, inside)) == pytest.approx(700e-6)
    assert float(send_s(slow, size, Group(4, 1))) == pytest.approx(500e-6)
    assert all_gather_s(slow, size, inside) == all_gather_s(plain, size, inside)
    assert all_reduce_s(slow, size, across) == all_reduce_s(plain, size, across)


def test_every_row_that_is_no_measured_call_is_named(tmp_path):
    path = tmp_path / "bad.csv"
    rows = [
        gemm_line(8, 8, 8),
        gemm_line(8, 8, 8, tflops=-1.0),
        line(kind="gemm", dtype="bf16", op="fwd", m=8, n=8, k=8, value=1.0, unit="TFLOP/s"),
        line(kind="collective", op="broadcast", num_gpus=2, message_bytes=8, value=1.0, unit="us", source="a test"),
        gemm_line(8, 8, 8, op="twice"),
    ]
    path.write_text("\n".join([HEADER, *rows, ""]))
    with pytest.raises(InputError) as caught:
        read_tables(path)
    assert str(caught.value).splitlines() == [
        f"{path}:3: is not a measured call: its value is -1.0, not a positive number",
        f"{path}:4: is not a measured call: it has no source",
        f"{path}:5: is not a measured call: collective 'broadcast' is not one of all_reduce, all_gather, "
        "reduce_scatter, all_to_all, send",
        f"{path}:6: is not a measured call: op 'twice' is neither fwd nor bwd",
    ]


def test_a_projection_uses_the_table_and_says_what_share_it_covers(tmp_path):
    model, workload = load_model("llama3.1_8b"), Workload(seq_length=8192, global_batch_size=8)
    c = Candidates.table(micro_batch_size=1)
    rows = [
        gemm_line(8192, n, k, op=op, tflops=100.0)
        for n, k in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
        for op in ("fwd", "bwd")
    ]
    plain = load_cluster("h100", 1)
    measured = load_cluster(with_table(tmp_path, *rows), 1)
    before, after = (Projector(Job(model, cluster, workload)).project(c).step for cluster in (plain, measured))
    linears_s = 3 * 2.0 * 8192 * (6144 + 4096 + 28672 + 14336) * 4096 * model.num_layers / 100e12
    spent = float((after.attention + after.mlp)[0])
    assert spent > float((before.attention + before.mlp)[0]) and spent > 0.9 * linears_s
    found = {one.family: one.share for one in kernel_evidence(Job(model, measured, workload), c)}
    assert found == {"gemm": 1.0, "attention": 0.0}
    assert sentence(kernel_evidence(Job(model, plain, workload), c)) == ""
    said = sentence(kernel_evidence(Job(model, measured, workload), c))
    assert said.startswith("kernels from the hardware's measured tables: 100% of GEMM time, 0% of attention time")


def test_project_prints_what_share_of_the_kernels_is_measured(tmp_path):
    with_table(tmp_path, gemm_line(8192, 6144, 4096))

    def projected(hardware):
        words = ["project", "--model", "llama3.1_8b", "--hardware", hardware, "--nodes", "1", "--json"]
        return json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)["measured_kernels"]

    assert "of GEMM time" in projected(str(tmp_path / "h100.yaml"))
    assert projected("h100") == ""
