"""Keys of Megatron's settings that make a candidate or a workload and size no model."""

from functools import lru_cache

from primus_search.files.known_keys import known_keys


@lru_cache(maxsize=1)
def setting_keys() -> frozenset[str]:
    """Every key that makes a candidate or a workload and sizes no model."""
    from primus_search.files.framework_files import load_framework

    known = known_keys("megatron")
    contracts = map(load_framework, ("megatron", "primus", "nemo"))
    spelled = (one.spelled.union(one.ignored) for one in contracts)
    positive = (key for key in known.effects if not key.startswith("no_"))
    return frozenset(known.read_beside).union(
        known.renamed, known.translated, (f"no_{key}" for key in positive), *spelled
    )
