"""Steps of reinforcement learning and preferences in launch files: the task of a file, and how its policy is trained.

policy_in({"algorithm.adv_estimator": "grpo", ...}, keys)     # {"task": "grpo", "policy": {"reference": "host", ...}}
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from primus_search.launch.contract import holds, number_in
from primus_search.values.machine.framework import Settings
from primus_search.values.tasks import TASKS, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyKeys:
    """What a launcher calls the settings of a policy. Each condition: keys, which may have `*`, and their values.

    tasks            by task the conditions under which a file has it, the first that holds
    reference        with which a policy has a reference; none given: always
    on_host          with which its weights are on the host while the policy trains; `"*": "*"`: always
    here             with which a `reference` or a `critic` stands on the policy's devices; none given: always
    shares_devices   with which rollouts keep their memory while the policy trains
    epochs, gpu_memory_utilization   keys of these settings, the first that a file sets
    counts_pairs     batches of dpo are counted in pairs of rows
    """

    tasks: Mapping[Task, Mapping[str, str]] = field(default_factory=dict)
    reference: Mapping[str, str] = field(default_factory=dict)
    on_host: Mapping[str, str] = field(default_factory=dict)
    here: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    shares_devices: Mapping[str, str] = field(default_factory=dict)
    epochs: tuple[str, ...] = ()
    gpu_memory_utilization: tuple[str, ...] = ()
    counts_pairs: bool = False


def policy_in(given: Settings, keys: PolicyKeys) -> dict[str, Any]:
    """`task` and `policy` of a workload as a file says them; `sft` alone, or nothing, where it trains no policy.

    Raises ValueError for a setting that is no number.
    """
    task = next((task for task, where in keys.tasks.items() if holds(given, where)), None)
    apart = {name for name, where in keys.here.items() if not holds(given, where)}
    if task == "ppo" and "critic" in apart:
        task = "grpo"  # the critic's step is one of its own
    if task is None or not TASKS[task].has_reference:
        return {"task": task} if task else {}
    has_reference = "reference" not in apart and (not keys.reference or holds(given, keys.reference))
    where = "host" if holds(given, keys.on_host) else "resident"
    found: dict[str, Any] = {"reference": where if has_reference else "none"}
    if TASKS[task].has_rollouts:
        found["epochs"] = number_in(given, keys.epochs, int)
        if holds(given, keys.shares_devices):
            found["gpu_memory_utilization"] = number_in(given, keys.gpu_memory_utilization, float)
    return {"task": task, "policy": {name: value for name, value in found.items() if value is not None}}
