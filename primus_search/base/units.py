"""Units: base units inside, the source's own units in YAML keys and reports.

Inside the package every quantity is in bytes, bytes per second, FLOPs, FLOP per second, seconds, hertz or watts.
A YAML key carries its unit as its last word (`hbm_GB`, `nic_GBps`, `latency_us`); `to_base` turns key and value into
the field name and the base value. Decimal and binary prefixes are both legal, because data sheets use both.

    >>> to_base("hbm_GB", 80)
    ('hbm_bytes', 80000000000.0)
    >>> to_base("nic_latency_us", 4)
    ('nic_latency_s', 4e-06)
"""

import math
from functools import cache

KB, MB, GB, TB = 1e3, 1e6, 1e9, 1e12
GIGA, TERA = 1e9, 1e12
KIB, MIB, GIB = 1024.0, 1024.0**2, 1024.0**3

BITS_PER_BYTE = 8.0

BF16_BYTES, FP32_BYTES, FP8_BYTES = 2.0, 4.0, 1.0
"""Of one element."""

SECONDS_PER_MINUTE, SECONDS_PER_HOUR, SECONDS_PER_DAY = 60.0, 3600.0, 86_400.0
HOURS_PER_DAY = 24.0

# YAML suffix -> (suffix of the field, factor to the base unit)
SUFFIXES: dict[str, tuple[str, float]] = {
    "B": ("bytes", 1.0),
    "KB": ("bytes", KB),
    "MB": ("bytes", MB),
    "GB": ("bytes", GB),
    "TB": ("bytes", TB),
    "KiB": ("bytes", KIB),
    "MiB": ("bytes", MIB),
    "GiB": ("bytes", GIB),
    "MBps": ("bytes_per_s", MB),
    "GBps": ("bytes_per_s", GB),
    "TBps": ("bytes_per_s", TB),
    "Gbps": ("bytes_per_s", GB / BITS_PER_BYTE),
    "GFLOPS": ("flops_per_s", GIGA),
    "TFLOPS": ("flops_per_s", TERA),
    "ns": ("s", 1e-9),
    "us": ("s", 1e-6),
    "ms": ("s", 1e-3),
    "s": ("s", 1.0),
    "MHz": ("hz", 1e6),
    "GHz": ("hz", 1e9),
    "W": ("w", 1.0),
}


def to_base(key: str, value: float) -> tuple[str, float]:
    """The field name in base units and the value in base units of one YAML key; a key without a unit is unchanged."""
    stem, _, suffix = key.rpartition("_")
    if not stem or suffix not in SUFFIXES:
        return key, value
    base, factor = SUFFIXES[suffix]
    return f"{stem}_{base}", value * factor


@cache
def yaml_keys(field: str) -> tuple[str, ...]:
    """Every YAML key that fills `field`: the field itself, or its stem with each unit that converts to its base.

    >>> yaml_keys("latency_s")
    ('latency_ns', 'latency_us', 'latency_ms', 'latency_s')
    """
    matches = (
        f"{field.removesuffix('_' + base)}_{suffix}"
        for suffix, (base, _) in SUFFIXES.items()
        if field.endswith("_" + base) and not (base == "s" and field.endswith("_per_s"))
    )
    return tuple(matches) or (field,)


def in_readable_unit(field: str, value: float) -> tuple[str, float]:
    """The YAML key of a field and its value with six digits, in the unit in which it is 1 to 1000 where one is.

    >>> in_readable_unit("latency_s", 4e-06)
    ('latency_us', 4.0)
    """
    scaled = {key: value / to_base(key, 1.0)[1] for key in yaml_keys(field) if key != field}
    key = next((key for key, number in scaled.items() if 1.0 <= abs(number) < 1000.0), field)
    return key, float(f"{scaled.get(key, value):.6g}")


_AMOUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_DAYS = {"": 1.0, "h": 1.0 / HOURS_PER_DAY, "d": 1.0, "w": 7.0}


def read_amount(given: float | str) -> float:
    """A number, or one with a decimal prefix: 15T tokens, 30M dollars. Raises ValueError for anything else."""
    return _scaled(
        given, {key.lower(): value for key, value in _AMOUNTS.items()}, "a number such as 15T, 30M or 1.5e12"
    )


def read_days(given: float | str) -> float:
    """Days of a number, or of a text with a unit: 60d, 8w, 36h. Raises ValueError for anything else."""
    return _scaled(given, _DAYS, "a time such as 60d, 8w or 36h")


def _scaled(given: float | str, units: dict[str, float], form: str) -> float:
    text = str(given).strip().lower().replace(",", "").replace("_", "")
    number = text.rstrip("abcdfghijklmnopqrstuvwxyz ")
    factor = units.get(text[len(number) :].strip())
    try:
        value = float(number) * (factor or math.nan)
    except ValueError:
        value = math.nan
    if isinstance(given, bool) or not math.isfinite(value) or value < 0.0:
        raise ValueError(f"{given!r} is not {form}")
    return value
