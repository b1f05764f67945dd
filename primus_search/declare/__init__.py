"""What a user declares, whole: a space file with its model and machine, and tables of measured runs.

    load_space("spaces/mixtral_8x22b.yaml")        a search space, with command line and environment applied

Names are loaded at first use: a catalogue needs no schedules and no compiler.

May import: models, files, space, schedule, values, base.
"""

from typing import TYPE_CHECKING

from primus_search.base.lazy import loader

if TYPE_CHECKING:
    from primus_search.declare.space_file import load_space, make_space

__all__ = ["load_space", "make_space"]

__getattr__ = loader(__name__, {"load_space": "space_file", "make_space": "space_file"})
