"""Frameworks as they are installed here, imported without what training alone needs."""

import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager

from tools.framework_imports import StandIns


@contextmanager
def stand_ins(*packages: str) -> Iterator[None]:
    """Stand-ins for packages that are not installed, while the block runs; modules imported there keep theirs."""
    missing = [one for one in packages if one in sys.modules or importlib.util.find_spec(one) is None]
    finder = StandIns(*missing)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


ABSENT = ("triton", "deep_ep", "torchdata", "datasets", "torchao", "tensorboard", "wandb")
"""Packages that torchtitan imports for training, and no model or check needs."""


def torchtitan() -> None:
    """Makes the installed torchtitan importable without its top module, which imports what training needs."""
    if "torchtitan" in sys.modules:
        return
    package = types.ModuleType("torchtitan")
    package.__spec__ = importlib.util.find_spec("torchtitan")
    package.__path__ = [str(importlib.metadata.distribution("torchtitan").locate_file("torchtitan"))]
    sys.modules["torchtitan"] = package
