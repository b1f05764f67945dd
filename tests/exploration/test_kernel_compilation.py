"""The first search of an installation compiles its kernels in several processes and says so; later ones do not."""

import sys

import pytest

from primus_search.declare import load_space
from primus_search.exploration import kernel_compilation
from primus_search.exploration.exhaustive.evaluate import Funnel
from primus_search.exploration.kernel_compilation import PARTS, compile_kernels


@pytest.fixture(scope="module")
def space():
    return load_space("llama3_8b_mi300x", overrides=["tp=1", "cp=1", "micro_batch_size=1"])


def test_each_part_evaluates_candidates_of_the_space(space):
    funnel = Funnel(space, 10)
    for part in PARTS:
        part(funnel)


def test_kernels_on_disk_are_not_compiled_again(space):
    said: list[str] = []
    PARTS[0](Funnel(space, 10))  # now they are
    compile_kernels(space, said.append)
    assert said == []


@pytest.mark.skipif(sys.platform != "linux", reason="parts run in forked processes")
def test_what_happens_is_said(space, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(kernel_compilation, "_are_kept", lambda: False)
    monkeypatch.setattr(kernel_compilation, "available_cores", lambda: 2)
    compile_kernels(space, said.append)
    assert said[0].startswith("compiling kernels (memory, pipelines, schedules), once per installation")
    assert said[1].startswith("kernels compiled in ")


def test_one_core_compiles_as_it_searches(space, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(kernel_compilation, "_are_kept", lambda: False)
    monkeypatch.setattr(kernel_compilation, "available_cores", lambda: 1)
    compile_kernels(space, said.append)
    assert len(said) == 1
