"""Signals that end a command. Their handler takes a note; `Interrupted` is raised at safe points only.

    install()                    # the command line, first of all
    check()                      # between two tasks, rows or files
    ready = wait(pipes, 5.0)     # a wait that a signal ends

An exception that a handler raises appears in whatever code runs at that moment; in a destructor Python prints it and
goes on. A command that reaches no safe point within `GRACE_S`, or gets another signal more than `REPEAT_S` after the
first, is ended by the handler itself with the same exit code. That is a kill, and files are written to survive one.

Without `install` (this package as a library) nothing here acts and Ctrl-C is a KeyboardInterrupt.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    import subprocess
    from concurrent.futures import Future

ENDING = tuple(signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if name in signal.Signals.__members__)
"""Ctrl-C, the request of a scheduler or system, a closed terminal."""
GRACE_S = 10.0
REPEAT_S = 1.0
"""`timeout` and closing terminals send a signal twice within milliseconds."""
POLL_S = 0.05
SHOW_CURSOR = b"\x1b[?25h"

Result = TypeVar("Result")


class Interrupted(BaseException):
    """A signal ends this process. Not an Exception, so that only code that saves its work catches it."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        self.number = int(number)
        super().__init__(f"interrupted by {signal.Signals(number).name}")


@dataclass(slots=True)
class _State:
    """The signal that this process got (0: none), when, and whether it was raised; signals count until `is_over`."""

    number: int = 0
    at_s: float = 0.0
    is_raised: bool = False
    is_over: bool = False
    mask: set[Any] = field(default_factory=set)
    pipe: list[int] = field(default_factory=list)
    """Becomes readable with the first signal and stays so."""


_state = _State()


def signal_of(stop: BaseException) -> int:
    """The signal behind an `Interrupted` or a KeyboardInterrupt."""
    return stop.number if isinstance(stop, Interrupted) else int(signal.SIGINT)


def install() -> None:
    """Take a note of each signal of `ENDING` that is not ignored (nohup ignores SIGHUP); again, it does nothing."""
    if _state.pipe:
        return
    _state.pipe = list(os.pipe())
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _note)
    os.register_at_fork(before=_hold, after_in_parent=_let, after_in_child=_restore)


def finish() -> int:
    """The signal that ends this process, 0 for none. From here on signals are ignored: the command is over."""
    _state.is_over = True
    if _state.pipe:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # what comes while the handlers change is dropped with us
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
    return _state.number


def check() -> None:
    """Raise `Interrupted` where a signal came: once in the main thread, which then saves its work; always in others."""
    if not _state.number:
        return
    if threading.current_thread() is not threading.main_thread():
        raise Interrupted(_state.number)
    if not _state.is_raised:
        _state.is_raised = True
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        raise Interrupted(_state.number)


def wait(objects: Sequence[Any] = (), timeout_s: float | None = None) -> list[Any]:
    """Those of some connections, sentinels or file descriptors that are ready. Raises `Interrupted` as `check` does."""
    from multiprocessing.connection import wait as wait_for_any  # a slow import, which many commands never need

    check()
    wake = [] if _state.is_raised else _state.pipe[:1]
    ready = wait_for_any([*objects, *wake], timeout_s)
    check()
    return [one for one in ready if one not in wake]


def has_ended(process: "subprocess.Popen[bytes]", within_s: float) -> bool:
    """Whether a process ends within a time. Raises `Interrupted` as `check` does."""
    deadline = time.monotonic() + within_s
    while process.poll() is None:
        if time.monotonic() >= deadline:
            return False
        wait(timeout_s=POLL_S)
    return True


def results(calls: Iterable["Future[Result]"]) -> list[Result]:
    """What calls in other threads or processes return. Raises `Interrupted` as `check` does, or what they raise."""
    from concurrent.futures import wait as wait_for_calls

    found = []
    for future in calls:
        while wait_for_calls([future], POLL_S).not_done:
            check()
        found.append(future.result())
    return found


def _note(number: int, frame: FrameType | None) -> None:
    if _state.is_over:
        return
    if not _state.number:
        _state.number, _state.at_s = number, time.monotonic()
        os.write(_state.pipe[1], b".")
        signal.signal(signal.SIGALRM, _end_at_once)
        signal.setitimer(signal.ITIMER_REAL, GRACE_S)
    elif time.monotonic() - _state.at_s > REPEAT_S:
        _end_at_once(number, frame)


def _end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    is_terminal = sys.__stderr__ is not None and sys.__stderr__.isatty()
    text = f"primus-search: {Interrupted(_state.number)}\n".encode()
    os.write(2, (SHOW_CURSOR if is_terminal else b"") + text)
    os._exit(128 + _state.number)


def _hold() -> None:
    """Signals wait while this process forks: Python forgets those that a child gets before it runs."""
    _state.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)


def _let() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _state.mask)


def _restore() -> None:
    """Default behaviour again in a forked process."""
    for number in ENDING:
        if signal.getsignal(number) is _note:
            signal.signal(number, signal.SIG_DFL)
    _state.number, _state.is_raised, _state.pipe = 0, False, []
    _let()
