"""A framework's contract as legality rules: what it cannot express, what it refuses, and axes without effect there."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from primus_search.space.context import Cells, GridJob
from primus_search.space.rules import CONDITIONALS, RULES, UNION_RULES, Keeps, Rule
from primus_search.space.types import Constraint
from primus_search.values.candidates import DEFAULTS, Bools
from primus_search.values.knobs import KNOB
from primus_search.values.machine.framework import Framework, Spelling


def rules_of(framework: Framework, constraints: Sequence[Constraint] = ()) -> tuple[Rule, ...]:
    """Every rule that binds a job of the framework, then the user's; the union's own rules for `any`."""
    own = UNION_RULES if framework.is_any else [*_expressible(framework), *_required(framework)]
    return (*RULES, *own, *(Rule.of(one.text, one.text, "a constraint of the space") for one in constraints))


def conditionals_of(framework: Framework) -> tuple[tuple[str, Keeps], ...]:
    """Axes that matter only sometimes, and where: those of every job, and those of the framework."""
    return (*CONDITIONALS, *((idle.axis, _has_none_of(idle.where, idle.words)) for idle in framework.idles))


def _has_none_of(axis: str, words: tuple[str, ...]) -> Keeps:
    def keeps(job: GridJob, cells: Cells) -> Bools:
        codes = cells.ints(axis)
        return np.array([_word(job, axis, code) not in words for code in range(int(codes.max(initial=0)) + 1)])[codes]

    return keeps


def _required(framework: Framework) -> list[Rule]:
    return [Rule.of(one.name, one.holds, _with_source(framework, one.reason, one.source)) for one in framework.requires]


def _with_source(framework: Framework, reason: str, source: str) -> str:
    """The reason with who says so; `(doubles)` stays at the end, where it is looked for."""
    body, is_double = reason.removesuffix(" (doubles)"), reason.endswith("(doubles)")
    return f"{body} ({framework.title}: {source})" + (" (doubles)" if is_double else "")


def _expressible(framework: Framework) -> list[Rule]:
    """One rule per axis whose values the framework does not have all of, and one for its schedules."""
    schedules = ", ".join(framework.schedules)
    rules = [
        Rule(
            name=f"{framework.name}_schedule",
            reads=("schedule", "vpp", "pp"),
            reason=f"{framework.title} has the schedules {schedules}, each with its numbers of virtual stages",
            keeps=_has_schedule(framework),
        )
    ]
    for axis in DEFAULTS:
        if axis == "schedule":
            continue
        knob = framework.spellings.get(axis)
        if knob is None:
            reason = f"{framework.title} has no setting for {axis}: only its plain value can be expressed"
        elif knob.values:
            reason = f"{framework.title} can express {axis}: {', '.join([*knob.values, *knob.modules])}"
        else:
            continue
        rules.append(
            Rule(name=f"{framework.name}_{axis}", reads=(axis,), reason=reason, keeps=_can_express(axis, knob))
        )
    return rules


def _has_schedule(framework: Framework) -> Keeps:
    def keeps(job: GridJob, cells: Cells) -> Bools:
        vpp, schedule = cells["vpp"], cells["schedule"]
        mask: Bools = cells["pp"] == 1
        for code, name in enumerate(job.schedules):
            has = framework.schedules.get(name)
            if has is not None:
                most = np.inf if has.most is None else has.most
                mask = mask | ((schedule == code) & (vpp >= has.least) & (vpp <= most))
        return mask

    return keeps


def _can_express(axis: str, knob: Spelling | None) -> Keeps:
    def keeps(job: GridJob, cells: Cells) -> Bools:
        codes, plain = cells.ints(axis), int(DEFAULTS[axis])
        every = range(int(codes.max(initial=0)) + 1)
        legal = [code == plain if knob is None else has_word(knob, _word(job, axis, code)) for code in every]
        return np.array(legal)[codes]

    return keeps


def _word(job: GridJob, axis: str, code: int) -> str:
    """A value as contracts spell it."""
    if isinstance(DEFAULTS[axis], bool):
        return spelled(axis, bool(code))
    vocabulary = {"schedule": job.schedules, "pipeline_layout": job.layouts}.get(axis)
    return spelled(axis, code if vocabulary is None else vocabulary[code])


def spelled(axis: str, value: Any) -> str:
    """A typed value as contracts spell it: words, numbers, true and false."""
    return str(value).lower() if isinstance(value, bool) else str(KNOB[axis].word(value))


def has_word(knob: Spelling, word: str) -> bool:
    """Whether a knob has settings for a word."""
    return word in knob.values or (bool(knob.modules) and all(part in knob.modules for part in recompute_parts(word)))


def recompute_parts(word: str) -> tuple[str, ...]:
    """The modules of a recompute word: `selective` is core attention."""
    return ("core_attention",) if word == "selective" else tuple(word.split("+"))
