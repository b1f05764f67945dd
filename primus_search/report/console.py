"""Where reports are printed: a terminal or a pipe, 80 columns and no colour where it is not said otherwise."""

from typing import TextIO

from rich.console import Console


class Plain(Console):
    """Shows text as it is: no markup (names and constraints may hold brackets), no emoji, no highlighting.

    A reader that goes away (`| head`) is a BrokenPipeError, as with any other output, not the end of the process: a
    search still has its folder to write.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(file=stream, markup=False, emoji=False, highlight=False)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
