"""The wheel ships every data file of the package, hardware/ and spaces/, and nothing of tools/ or tests/."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """Files of the repository that setup.py puts into the wheel."""
    import setuptools  # noqa: F401, I001 - brings distutils where Python has none
    from distutils.core import run_setup

    monkeypatch.chdir(ROOT)
    setup = run_setup("setup.py", stop_after="init")
    found = set()
    for package in setup.packages:
        folder = ROOT / setup.package_dir.get(package, package.replace(".", "/"))
        patterns = ["*.py", *setup.package_data.get("", []), *setup.package_data.get(package, [])]
        found |= {path for pattern in patterns for path in folder.glob(pattern)}
    return {path.relative_to(ROOT) for path in found}


def test_every_file_of_the_package_and_its_data_is_shipped(shipped: set[Path]) -> None:
    rooms = ("primus_search", "hardware", "spaces", "sweeps")
    listed = subprocess.run(["git", "ls-files", *rooms], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    files = [Path(name) for name in listed.stdout.decode().splitlines()]
    assert [str(path) for path in files if path not in shipped and (ROOT / path).exists()] == []


def test_nothing_of_the_maintainers_is_shipped(shipped: set[Path]) -> None:
    assert {path.parts[0] for path in shipped} == {"primus_search", "hardware", "spaces", "sweeps"}
