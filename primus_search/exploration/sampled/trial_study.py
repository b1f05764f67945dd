"""The Optuna study of `tune`: every finished trial once, in a journal that `optuna-dashboard` opens."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import TrialState, create_trial

from primus_search.exploration.sampled.study import STUDY_NAME


def keep_trials(
    path: Path, values: Mapping[str, Sequence[str]], trials: Sequence[tuple[Mapping[str, str], float | None, str]]
) -> None:
    """Write the journal of all trials, whole. values: of every axis; trials: candidate, tokens/s/GPU, verdict."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    partial = path.with_name(f".{path.name}.partial")
    for left in (partial, partial.with_name(f"{partial.name}.lock")):  # of a killed run; the folder is ours
        left.unlink(missing_ok=True)
    storage = JournalStorage(JournalFileBackend(str(partial), lock_obj=JournalFileOpenLock(str(partial))))
    study = optuna.create_study(study_name=STUDY_NAME, storage=storage, direction="maximize")
    axes = {name: CategoricalDistribution(list(choices)) for name, choices in values.items()}
    for params, rate, verdict in trials:
        state = TrialState.COMPLETE if rate is not None else TrialState.FAIL
        chosen = {name: params[name] for name in axes}
        said = {"verdict": verdict}
        study.add_trial(create_trial(state=state, value=rate, params=chosen, distributions=dict(axes), user_attrs=said))
    partial.replace(path)
