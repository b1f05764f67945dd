"""Signals that end a command, as one exception: the command saves what it has and exits with 128 + the signal's number.

`install` is called once by the command line. Forked workers call `restore` first and end without saving.
"""

import signal
from types import FrameType

ENDING = tuple(signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if name in signal.Signals.__members__)
"""Ctrl-C, the request of a scheduler or system, a closed terminal."""


class Interrupted(BaseException):
    """A signal asked this process to end. Not an Exception, so that only code that saves its work catches it."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        self.number = int(number)
        super().__init__(f"interrupted by {signal.Signals(number).name}")

    @property
    def exit_code(self) -> int:
        """The shell's convention: 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP."""
        return exit_code_of(self.number)


def exit_code_of(number: int) -> int:
    """Exit code of a process that a signal ended."""
    return 128 + number


def signal_of(stop: BaseException) -> int:
    """The signal behind an `Interrupted` or a KeyboardInterrupt."""
    return stop.number if isinstance(stop, Interrupted) else int(signal.SIGINT)


def install() -> None:
    """Raise `Interrupted` in the main thread for each signal of `ENDING` that is not ignored (nohup ignores SIGHUP)."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _raise)


def restore() -> None:
    """Default behaviour again, in a forked worker."""
    for number in ENDING:
        if signal.getsignal(number) is _raise:
            signal.signal(number, signal.SIG_DFL)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)
