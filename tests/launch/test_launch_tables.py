"""What frameworks ship under a name: torchtitan's flavors."""

from dataclasses import replace
from pathlib import Path

import pytest

from primus_search.files.known_keys import key_table
from primus_search.launch.read.experiments import read_experiment
from primus_search.models import torchtitan_arguments
from primus_search.models.model_files import load_model

SAME = {
    "llama3:8B": "llama3.1_8b",
    "llama3:70B": "llama3.1_70b",
    "llama3:405B": "llama3.1_405b",
    "llama4:17bx16e_irope": "llama4_scout",
    "llama4:17bx128e_irope": "llama4_maverick",
    "qwen3:0.6B": "qwen3_0.6b",
    "qwen3:4B": "qwen3_4b",
    "qwen3:8B": "qwen3_8b",
    "qwen3:14B": "qwen3_14b",
    "qwen3:32B": "qwen3_32b",
    "qwen3:30B-A3B": "qwen3_30b_a3b",
    "qwen3:235B-A22B": "qwen3_235b_a22b",
    "deepseek_v3:16B": "deepseek_v2_lite",
    "gpt_oss:20b": "gpt_oss_20b",
    "gpt_oss:120b": "gpt_oss_120b",
}
"""Flavors of torchtitan 0.2.2 and the published model that each is."""


@pytest.mark.parametrize("flavor", SAME)
def test_a_flavor_has_the_parameters_of_the_model_it_is(flavor: str) -> None:
    found, published = torchtitan_arguments.flavor(flavor), load_model(SAME[flavor])
    assert found is not None
    assert found[0].total_params == pytest.approx(published.total_params, rel=1e-5)
    assert found[0].active_params == pytest.approx(published.active_params, rel=1e-4)


@pytest.mark.parametrize("family", ["llama3", "llama4", "qwen3", "deepseek_v3", "gpt_oss"])
def test_a_job_file_of_every_flavor_is_read_whole(family: str, tmp_path: Path) -> None:
    for name in key_table("torchtitan_flavors")[family]["flavors"]:
        job = tmp_path / "job.toml"
        job.write_text(f'[model]\nname = "{family}"\nflavor = "{name}"\n[training]\nseq_len = 2048\n')
        read = read_experiment(job, 8)
        assert read.model is not None, name
        assert any("packed documents" in note for note in read.not_modelled) == name.endswith(
            ("_flex", "_varlen", "_flex_attn", "_varlen_attn")
        ), name


def test_a_flavor_of_another_release_that_names_its_kernel_is_that_of_its_sizes() -> None:
    found, usual = torchtitan_arguments.flavor("llama3:70B_flex_flash"), torchtitan_arguments.flavor("llama3:70B")
    assert found and usual and found[1] == "flex_flash"
    assert replace(found[0], name="") == replace(usual[0], name="")


def test_a_flavor_that_torchtitan_does_not_register_is_refused(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text('[model]\nname = "llama3"\nflavor = "9B"\n[activation_checkpoint]\nmode = "none"\n')
    assert read_experiment(job, 8).model is None
