"""From files to typed values: the only room that sees dictionaries.

Every loader here reads YAML (or JSON) as data, reports every problem of a file at once with file, line and path, and
returns the frozen types of the rooms below. Nothing outside this package parses YAML or knows what a preset is called.

    load_space("spaces/mixtral_8x22b.yaml")        a search space, with command line and environment applied
    load_model("deepseek_v3")                      a preset, a Primus/Megatron model YAML, or a HuggingFace config.json
    load_cluster("mi355x", nodes=32)               accelerator, network and software stack
"""

from typing import TYPE_CHECKING

from primus_search.base.lazy import loader

if TYPE_CHECKING:
    from primus_search.declare.hardware_files import load_cluster, load_hardware, load_stack
    from primus_search.declare.model_files import load_model
    from primus_search.declare.space_file import load_space, make_space

__all__ = ["load_cluster", "load_hardware", "load_model", "load_space", "load_stack", "make_space"]

# Loaded at first use: a catalogue command needs no schedules and no compiler, which a space does.
_HOMES = {
    "load_cluster": "hardware_files",
    "load_hardware": "hardware_files",
    "load_stack": "hardware_files",
    "load_model": "model_files",
    "load_space": "space_file",
    "make_space": "space_file",
}


__getattr__ = loader(__name__, _HOMES)
