"""Choose the training configuration of a large model before the cluster is paid for.

import primus_search as ps
run = ps.search("space.yaml", nodes=32)
run.ranking, run[1].explain(), run[1].export("megatron", "launch")
"""

from typing import TYPE_CHECKING

from primus_search.base.lazy import choose_kernel_cache, loader, provide
from primus_search.base.version import __version__

if TYPE_CHECKING:
    from primus_search.cost.project import project
    from primus_search.declare import load_space
    from primus_search.files.hardware_files import load_cluster
    from primus_search.models.model_files import load_model
    from primus_search.session.notebook import Run, load_run, search

choose_kernel_cache()
provide("host_file", f"{__name__}.measure.host_calibration", "host_file")
provide("model_of_preset", f"{__name__}.models.preset_sizes", "model_of_preset")

_LAZY = {
    "load_model": "models.model_files",
    "load_cluster": "files.hardware_files",
    "load_space": "declare",
    "project": "cost.project",
    "search": "session.notebook",
    "load_run": "session.notebook",
    "Run": "session.notebook",
}
"""Public name -> module it lives in. Loaded at first use, so that `import primus_search` stays instant."""

__all__ = ["Run", "__version__", "load_cluster", "load_model", "load_run", "load_space", "project", "search"]


__getattr__ = loader(__name__, _LAZY)


def __dir__() -> list[str]:
    return __all__
