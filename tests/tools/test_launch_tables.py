"""Tables of what frameworks ship under a name are what the generator reads from the frameworks' own sources."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tools.launch_tables import torchtitan

TABLE = Path(__file__).parents[2] / "spaces" / "keys" / "torchtitan_flavors.yaml"


def test_flavors_are_those_of_the_installed_torchtitan() -> None:
    """The literals of torchtitan 0.2.2's `models/*/__init__.py`, the release of the constraints of `make test`."""
    found = find_spec("torchtitan")
    if found is None or not found.submodule_search_locations:
        pytest.skip("torchtitan is not installed")
    site = Path(next(iter(found.submodule_search_locations))).parent
    assert torchtitan(site) == yaml.safe_load(TABLE.read_text(encoding="utf-8"))
