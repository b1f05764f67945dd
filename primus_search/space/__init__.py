"""The space of training configurations: axes, legality rules, user constraints, enumeration in chunks, distinct keys.

May import: schedule, values, base.
"""

from primus_search.space.auto import auto_values as auto_values
from primus_search.space.auto import word_values as word_values
from primus_search.space.constraints import ConstraintError as ConstraintError
from primus_search.space.constraints import parse as parse
from primus_search.space.enumerate import Enumerator as Enumerator
from primus_search.space.types import AXES as AXES
from primus_search.space.types import Axis as Axis
from primus_search.space.types import AxisValue as AxisValue
from primus_search.space.types import BenchmarkSettings as BenchmarkSettings
from primus_search.space.types import ClusterChoice as ClusterChoice
from primus_search.space.types import Constraint as Constraint
from primus_search.space.types import Goal as Goal
from primus_search.space.types import Override as Override
from primus_search.space.types import SearchSettings as SearchSettings
from primus_search.space.types import Space as Space
