"""What a fit reads and may learn from: several tables as one, known software, numbers that no file quotes or copies."""

from pathlib import Path

import numpy as np
import pytest

from primus_search.base.errors import InputError
from primus_search.evidence.published.convert import measured_table
from primus_search.evidence.published.run_table import read_rows
from tools.fit.training_parameters import die, is_informative, parameters, quoted
from tools.fit.training_run import SPLITS, read_cases, shipped_fit

DATA = Path(__file__).parents[2] / "oracle" / "data"
TABLES = DATA / "trained_on.txt"


def test_a_list_reads_as_all_its_tables_and_every_run_keeps_its_place() -> None:
    lines = [line for line in TABLES.read_text().splitlines() if line and not line.startswith("#")]
    names = [line.split()[0] for line in lines]
    runs = read_rows(TABLES)
    assert len(runs) == sum(len(read_rows(DATA / name)) for name in names)
    assert len({run.place for run in runs}) == len(runs)
    assert {Path(run.table).name for run in runs} == set(names)


def test_a_vendor_after_a_table_takes_the_runs_of_its_devices_alone(tmp_path: Path) -> None:
    path = tmp_path / "tables.txt"
    path.write_text(f"{DATA / 'unseen_runs_5.csv'} amd\n{DATA / 'amd_runs.csv'}  amd # a remark\n")
    runs = measured_table(path).runs
    assert {run.cluster.accelerator.vendor for run in runs} == {"amd"}
    assert len(runs) > 33


@pytest.mark.parametrize("text", ["", "# nothing\n", "missing.csv\n", "\xff"])
def test_a_list_that_names_no_table_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tables.txt"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError):
        read_rows(path)


def test_a_publisher_is_one_whatever_its_edition_page_or_table() -> None:
    found = {run.publisher for run in read_rows(TABLES)}
    together = ("MLPerf", "NVIDIA-NeMo/Megatron-Bridge", "FlagOpen/FlagPerf", "NVIDIA/dgxc-benchmarking")
    assert all(sum(word.lower() in name.lower() for name in found) == 1 for word in together)
    assert {"Korthikanti et al.", "Narayanan et al. SC21", "MegaScale NSDI24"} <= found


def test_export_versions_speak_about_the_die_they_have() -> None:
    assert [die(name) for name in ("A800", "H800", "MI325X")] == ["A100-80", "H100", "MI300X"]
    assert [die(name) for name in ("A100-80", "H100-96GB", "MI250X")] == ["A100-80", "H100-96GB", "MI250X"]
    cases = [case for case in read_cases(DATA / "unseen_runs_2.csv") if is_informative(case)]
    assert {"A800", "H800"} & {case.cluster.accelerator.name for case in cases}
    assert not {"A800", "H800"} & {p.name for p in parameters(cases)}


def test_what_a_file_quotes_is_not_fitted() -> None:
    assert {"gradient_overlap", "gemm_efficiency"} <= quoted("megatron_lm")
    assert {"tensor_overlap", "shard_overlap", "host_launch_s"} <= quoted("host")
    assert not quoted("nemo_2024")


def test_runs_of_guessed_software_are_scored_and_teach_nothing() -> None:
    found = shipped_fit(read_cases(DATA / "unseen_runs_2.csv"))
    guessed = np.array([case.cluster.stack.is_assumed for case in found.cases])
    assert guessed.any() and not found.fit_weights[guessed].any() and found.fit_weights[~guessed].all()
    assert not {p.name for p in found.parameters} & {"megatron_lm"}
    assert np.isfinite(found.left_out(SPLITS["source"])).all()
