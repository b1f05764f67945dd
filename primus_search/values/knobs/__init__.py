"""The knobs of a training configuration: `rows` has one of each, `knob` what a row is, `values` their words."""

from primus_search.values.knobs.knob import Enters as Enters
from primus_search.values.knobs.knob import Kind as Kind
from primus_search.values.knobs.knob import Knob as Knob
from primus_search.values.knobs.knob import KnobValue as KnobValue
from primus_search.values.knobs.knob import Row as Row
from primus_search.values.knobs.knob import Scope as Scope
from primus_search.values.knobs.rows import KNOB as KNOB
from primus_search.values.knobs.rows import KNOBS as KNOBS
from primus_search.values.knobs.rows import NUMERIC as NUMERIC
from primus_search.values.knobs.rows import WORDED as WORDED
from primus_search.values.knobs.rows import reading as reading
from primus_search.values.knobs.values import CpComm as CpComm
from primus_search.values.knobs.values import CudaGraph as CudaGraph
from primus_search.values.knobs.values import DispatchBackend as DispatchBackend
from primus_search.values.knobs.values import Fp8 as Fp8
from primus_search.values.knobs.values import GroupedGemm as GroupedGemm
from primus_search.values.knobs.values import Offload as Offload
from primus_search.values.knobs.values import Optimizer as Optimizer
from primus_search.values.knobs.values import Recompute as Recompute
from primus_search.values.knobs.values import RecomputeMethod as RecomputeMethod
from primus_search.values.knobs.values import Sharding as Sharding
from primus_search.values.knobs.values import StateFormat as StateFormat
