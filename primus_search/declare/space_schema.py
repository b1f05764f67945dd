"""The shape of a space file as pydantic models, and the JSON schema they publish for editors.

Structure and simple ranges are checked here; axes are read by `axes`, names are looked up by `machines` and
`space_file`. Every message is ours: pydantic's findings are translated to `file:line @ $.path: what - allowed`.
"""

import ast
import copy
import inspect
from collections.abc import Callable, Collection, Mapping, Sized
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError

from primus_search.base.errors import Problem, did_you_mean
from primus_search.base.guards.files import table_beside
from primus_search.base.guards.values import LARGEST_WHOLE
from primus_search.base.units import read_amount, read_days
from primus_search.declare.axes import AXIS
from primus_search.files.source import Document, Keys, join_words, quoted
from primus_search.space.types import Device, Method, Numerics, Objective
from primus_search.values.lengths import Packing
from primus_search.values.tasks import Reference, Task

SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)


class LoraFile(_Strict):
    """Low-rank adapters beside frozen weights."""

    rank: int = Field(default=32, ge=1, le=65536)
    """Rank of every adapter; tensor parallelism has to divide it."""
    alpha: float = Field(default=32.0, gt=0.0)
    """Adapters' outputs are scaled by alpha over rank."""
    modules: list[str] = Field(default_factory=list)
    """Adapted matrices: linear_qkv, linear_proj, linear_fc1, linear_fc2, experts ...; or HuggingFace's q_proj ... Left
    out: all of attention and MLPs, experts of a layer sharing one; `all-linear`: every part of them by itself."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of an adapter's inputs that is dropped."""
    base: str = ""
    """How frozen weights are held: bf16, nf4, nf4_single or int8; left out: bf16 for lora, nf4 for qlora."""


class PolicyFile(_Strict):
    """How the tasks dpo, grpo and ppo train."""

    reference: Reference = "resident"
    """Where the reference's weights are while the policy trains: `resident` on the devices, on the `host`, or `none`:
    no reference. Base weights below adapters are their own."""
    old_log_probs: bool = True
    """Whether each row passes the policy before its update (grpo, ppo)."""
    epochs: int = Field(default=1, ge=1, le=LARGEST_WHOLE)
    """Training passes over the rows of one rollout, which share the passes for log-probabilities."""
    gpu_memory_utilization: float = Field(default=0.0, ge=0.0, le=0.9)
    """Share of device memory that an engine of rollouts holds while the policy trains; 0: it has its own devices, or
    gives all of it back."""
    rollout_s: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Seconds of rollouts per optimizer step in which no rank trains, as measured; 0: not in the step."""


class WorkloadFile(_Strict):
    """What is trained per optimizer step."""

    seq_length: int = Field(ge=1, le=LARGEST_WHOLE)
    """Tokens per sample."""
    global_batch_size: int = Field(ge=1, le=LARGEST_WHOLE)
    """Samples per optimizer step, over the whole cluster."""
    routing_imbalance: float = Field(default=1.0, ge=1.0)
    """Tokens of the busiest expert-parallel rank over the mean; 1.0 is forced balance."""
    routing_spread: float = Field(default=0.0, ge=0.0, le=2.0)
    """Standard deviation of the logarithm of experts' loads; ranks with fewer experts are less even."""
    experts_in_turn: bool = False
    """Whether experts are dealt to tokens in turn, as by a benchmark's gate: those of a token are neighbours."""
    pads_to_capacity: bool = False
    """Whether each expert takes `routing_imbalance` times its share: tokens beyond are dropped, missing ones padded."""
    document_length: float | str | dict[str, Any] = 0.0
    """Tokens of the documents that attention keeps to, as the mean token sees them; 0: a sample is one. Or their
    distribution: `{quantiles: {p10: 180, p50: 900, p100: 32768}}`, `{histogram: {512: 3, 2048: 1}}`, a set, a file."""
    packing: Packing = "cut"
    """How rows of seq_length are filled: documents `cut` where a row ends; `whole` ones, the rest padding;
    `token_budget`, the rest not computed; one a row, `unpadded`, `pad_to_longest` of its micro-batch or
    `pad_to_window`."""
    balanced_packing: bool = False
    """Whether rows of a step are dealt to ranks and micro-batches by their work."""
    image_tokens: int = Field(default=0, ge=0, le=LARGEST_WHOLE)
    """Tokens of a sample that a model's vision tower makes from images; 0: text alone, towers are not held."""
    tokens_per_image: int = Field(default=0, ge=0, le=LARGEST_WHOLE)
    """Tokens of one image; 0: as the model's configuration says, else all image tokens are one image."""
    trains_towers: bool = True
    """Whether towers and their projectors are trained; false: frozen."""
    task: Task = "pretrain"
    """What is trained: all weights (`pretrain`, `sft`), or adapters beside frozen ones (`lora`; `qlora`: in 4 bits); a
    policy on preferences (`dpo`) or rollouts (`grpo`; `ppo`: with a critic of its size), by adapters where `lora` is
    given. A row is one sequence: a pair of dpo is two."""
    lora: LoraFile = Field(default_factory=LoraFile)
    """The adapters of the tasks lora and qlora, and of a policy that has some."""
    policy: PolicyFile = Field(default_factory=PolicyFile)
    """How a policy is trained: the step of the tasks dpo, grpo and ppo."""


class BudgetFile(_Strict):
    """How much a search may spend."""

    candidates: int = Field(default=0, ge=0, le=2**62)
    """Legal candidates that may be looked at; `method: auto` samples a larger space. 0: no limit."""
    evaluations: int = Field(default=0, ge=0, le=LARGEST_WHOLE)
    """Projections that a sampled search may make. 0: 2,000."""
    seconds: float = Field(default=0.0, ge=0.0)
    """Wall seconds the search may take. 0: no limit."""


class SearchFile(_Strict):
    """How the space is searched and ranked."""

    method: Method = "auto"
    """`exhaustive` proves the optimum of the model; `auto` takes it while the space fits the budget."""
    objective: Objective = "auto"
    """What several clusters are ranked by; dollars need a price, joules watts. `auto`: with a date or budget the
    cheapest or earliest that meets it, else the highest rate per device."""
    memory_margin: float = Field(default=0.08, ge=0.0, lt=1.0)
    """Share of device memory that stays free."""
    numerics: Numerics = "usual"
    """`safe`: BF16 alone. `usual`: where `fp8` is left out, what the framework's recipes use. `any`: every recipe."""
    min_fit: float = Field(default=0.0, ge=0.0, le=100.0)
    """Probability of running in device memory, in percent, below which a candidate is left out of the ranking. From 1
    to 90 the recommendation may be AT RISK, where its rate times its probability is higher. 0: nothing is left out, and
    what FITS is recommended."""
    budget: BudgetFile = Field(default_factory=BudgetFile)
    top_k: int = Field(default=8, ge=1, le=LARGEST_WHOLE)
    """Rows of the ranking."""
    seed: int = Field(default=0, ge=0, le=LARGEST_WHOLE)
    """Seed of samplers; same seed, same ranking."""


# YAML reads a bare `off` as false.
_DeviceWord = Annotated[Device, BeforeValidator(lambda given: "off" if given is False else given)]


def _read_by(reader: Callable[[Any], float]) -> BeforeValidator:
    """A number that may be written with a unit."""

    def read(given: Any) -> float:
        try:
            return reader(given)
        except ValueError as error:
            raise PydanticCustomError("amount", "{what}", {"what": str(error)}) from None

    return BeforeValidator(read, json_schema_input_type=float | str)


_Amount = Annotated[float, _read_by(read_amount)]
_Days = Annotated[float, _read_by(read_days)]


class GoalFile(_Strict):
    """What the training is to reach: of several clusters, the one that does is recommended."""

    tokens: _Amount = Field(default=0.0, ge=0.0, le=1e18)
    """Tokens to train on: 15T. Days, cost and energy of every cluster follow. 0: none."""
    within_days: _Days = Field(default=0.0, ge=0.0)
    """Date: 60d, 8w. Needs tokens. 0: none."""
    budget_USD: _Amount = Field(default=0.0, ge=0.0)  # noqa: N815 - USD is the unit
    """Most that the GPU hours may cost: 30M. Needs tokens and a price of every device. 0: none."""
    chance: float = Field(default=80.0, gt=0.0, lt=100.0)
    """Percent of probability with which date and budget are to be met, by the interval of the rate."""


class BenchmarkFile(_Strict):
    """How the best candidates are re-validated with torch."""

    device: _DeviceWord = "auto"
    """Where layers are run: traced without a device, on this CPU, or on a CUDA/HIP device."""
    top_k: int = Field(default=4, ge=1, le=LARGEST_WHOLE)
    """Candidates that are re-validated."""
    seconds: float = Field(default=60.0, ge=0.0)
    """Wall seconds for all of them together."""


def _axes_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "The axes: a value, a list of values, or a word. An axis that is left out is `auto`.",
        "properties": {name: spec.json_schema() for name, spec in AXIS.items()},
        "patternProperties": {
            r"^(hardware|stack)\.": {
                "description": "A number of the hardware or stack file as an axis, e.g. hardware.nic_GBps: [50, 100]."
            }
        },
        "additionalProperties": False,
    }


class SpaceFile(_Strict):
    """A search space: a model, a cluster, a workload, and what may vary. Only these three are required."""

    name: str | None = None
    """Title for reports."""
    model: str
    """A preset (`primus-search models`), a Primus/Megatron model YAML, or a HuggingFace config.json."""
    vocab_size: int | None = Field(default=None, ge=1)
    """Rows of the model's embedding before padding, instead of what its file says."""
    ignore: list[str] = Field(default_factory=list)
    """Keys of an imported model file to leave out knowingly."""
    hardware: str | list[str]
    """A hardware file by name (`primus-search hardware`) or path, a Primus hardware_config file, or `host`."""
    nodes: int | list[int] = 1
    """Number of nodes; a list makes the cluster's size an axis."""
    gpus: list[int] = Field(default_factory=list)
    """Devices of the whole cluster in place of nodes: one size means the same on nodes of four and of eight."""
    price: dict[str, float] = Field(default_factory=dict)
    """USD per GPU hour by hardware name, in place of its file's: `{h200: 2.5}`. Changes no rate."""
    goal: GoalFile = Field(default_factory=GoalFile)
    gpus_per_node: int | None = Field(default=None, ge=1, le=LARGEST_WHOLE)
    """Devices used per node, if not all."""
    stack: str | list[str] | None = None
    """Software stack by name; the hardware file's default if left out. `torchtitan@2025`: a variant of its file."""
    site: Literal["own", "vendor"] = "own"
    """Whose cluster it is. `own`: one that no fit has seen, whose rates are expected below the projection and whose
    bands are wider, until `learn` has read runs of it; `vendor`: the device vendor's, as in its published runs."""
    framework: str | list[str] | None = None
    """What starts the job: primus, megatron, torchtitan, nemo, or any (the union of their rules); several are compared.
    `nemo@26.04`: as that release was. Left out: primus on AMD devices, megatron on NVIDIA devices."""
    workload: WorkloadFile
    space: Annotated[dict[str, Any], WithJsonSchema(_axes_schema())] = Field(default_factory=dict)
    constraints: list[str] = Field(default_factory=list)
    """Expressions every candidate must satisfy, e.g. `tp * ep <= 16`."""
    search: SearchFile = Field(default_factory=SearchFile)
    benchmark: BenchmarkFile = Field(default_factory=BenchmarkFile)


def json_schema() -> dict[str, Any]:
    """The JSON schema of a space file (draft 2020-12)."""
    schema = SpaceFile.model_json_schema()
    for model in _Strict.__subclasses__():
        properties = (schema if model is SpaceFile else schema["$defs"][model.__name__])["properties"]
        for name, text in _attribute_docstrings(model).items():
            properties[name] = dict(sorted((properties[name] | {"description": text}).items()))
    return {"$schema": SCHEMA_ID} | schema | {"title": "primus-search space file"}


def _attribute_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """What stands below each field of a model. Read on demand: pydantic would do so at every start."""
    (definition,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def validate(document: Document) -> tuple[SpaceFile | None, frozenset[str], list[Problem]]:
    """The file's structure, the top-level keys it cannot be judged on, and every problem found in it.

    Where the structure is wrong, the faulty places are cut out and the rest is returned, so that names and axes are
    checked in the same go. None where the file is no mapping at all.
    """
    data = document.data
    if not isinstance(data, dict):
        what = "expected a mapping with model, hardware and workload"
        return None, frozenset(), [document.problem((), f"{what}; got {quoted(data)}")]
    try:
        return SpaceFile.model_validate(data), frozenset(), []
    except ValidationError as error:
        problems = _problems(document, error)
        places = [_path(detail["loc"]) for detail in error.errors(include_url=False)]
    rest = copy.deepcopy(data)
    for keys in sorted(places, key=len):
        _cut(rest, keys)
    unknown = frozenset(str(keys[0]) for keys in places)
    filler = {"model": "", "hardware": [], "workload": {"seq_length": 1, "global_batch_size": 1}}
    if "workload" in unknown:
        rest["workload"] = filler["workload"]
    return SpaceFile.model_validate(filler | rest), unknown, problems


def _cut(data: Any, keys: Keys) -> None:
    """Remove the value at `keys` if it is there; from a list, the whole list."""
    for key in keys[:-1]:
        inner = data.get(key) if isinstance(data, dict) else None
        if not isinstance(inner, dict):
            break
        data, keys = inner, keys[1:]
    if isinstance(data, dict):
        data.pop(keys[0], None)


def _problems(document: Document, error: ValidationError) -> list[Problem]:
    """Pydantic's findings in our words, one per place; what the branches of a union expect is one message."""
    found: dict[Keys, list[dict[str, Any]]] = {}
    for detail in error.errors(include_url=False):
        found.setdefault(_path(detail["loc"]), []).append(dict(detail))
    # A list with a bad item is also no number, which is what another branch of the union asks for.
    inner = {keys[:-1] for keys in found}
    problems: list[Problem] = []
    for keys, details in found.items():
        if keys not in inner:
            problems.append(document.problem(keys, _sentence(keys, details, problems)))
    return problems


_BRANCHES = ("str", "int", "float", "dict[str,any]", "list[str]", "list[int]")


def _path(loc: tuple[str | int, ...]) -> Keys:
    """Pydantic's location without the names of union branches."""
    return tuple(key for key in loc if key not in _BRANCHES)


def _known_keys(keys: Keys) -> list[str]:
    """The keys the mapping around `keys` may have."""
    model: type[BaseModel] = SpaceFile
    for key in keys[:-1]:
        annotation = model.model_fields[str(key)].annotation
        assert isinstance(annotation, type) and issubclass(annotation, BaseModel)
        model = annotation
    return list(model.model_fields)


SECTIONS: Mapping[str, Collection[str]] = {
    "space": AXIS.keys(),
    "search": SearchFile.model_fields.keys(),
    "workload": WorkloadFile.model_fields.keys(),
    "benchmark": BenchmarkFile.model_fields.keys(),
    "goal": GoalFile.model_fields.keys(),
}
"""Keys of each section."""


def _elsewhere(key: str, after: Sized) -> str:
    """A hint for a key that belongs into another section."""
    near = ((section, did_you_mean(key, names, after)) for section, names in SECTIONS.items())
    return next((hint.replace("'", f"'{section}.", 1) for section, hint in near if hint), "")


_WORDS = table_beside(__file__)
"""What pydantic expected, and how a number is bounded, in the words of messages, by the type of an error."""


def _sentence(keys: Keys, details: list[dict[str, Any]], after: Sized) -> str:
    detail = details[-1]
    kind, given, context = detail["type"], detail.get("input"), detail.get("ctx", {})
    if kind == "missing":
        return "missing key; a space needs model, hardware and workload with seq_length and global_batch_size"
    if kind == "extra_forbidden":
        known = _known_keys(keys)
        hint = did_you_mean(str(keys[-1]), known, after) or _elsewhere(str(keys[-1]), after)
        return f"unknown key{hint} - allowed: {', '.join(known)}"
    if kind == "literal_error":
        words = [word.strip().strip("'") for word in context["expected"].replace(" or ", ", ").split(",")]
        return f"{quoted(given)} is not one of {join_words(words)}{did_you_mean(str(given), words)}"
    if kind in _WORDS["limits"]:
        relation, key = _WORDS["limits"][kind]
        return f"must be {relation} {context[key]}, got {quoted(given)}"
    expected = [_WORDS["expected"][one["type"]] for one in details if one["type"] in _WORDS["expected"]]
    if expected:
        return f"expected {join_words(expected)}, got {quoted(given)}"
    return str(detail["msg"])
