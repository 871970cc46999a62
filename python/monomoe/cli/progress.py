"""A progress bar on stderr: redrawn on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import shutil
import sys
import time

_BAR_WIDTH = 30
_REDRAW_S = 0.1
_LINES = 10  # lines in all where stderr is no terminal


class Progress:
    """`advance` after each of `total` steps; `with` clears the bar at the end."""

    def __init__(self, total: int, quiet: bool = False):
        self._total, self._done = total, 0
        self._tty = sys.stderr.isatty()
        self._quiet = quiet  # no lines where stderr is no terminal
        self._start = self._drawn = time.monotonic()

    def advance(self, text: str) -> None:
        """One more step is done; `text` is shown beside the bar."""
        self._done += 1
        now = time.monotonic()
        if self._tty:
            if now - self._drawn >= _REDRAW_S or self._done == self._total:
                self._drawn = now
                self._draw(text, now - self._start)
        elif not self._quiet and self._done % max(1, self._total // _LINES) == 0:
            print(f"{self._done}/{self._total} {text}", file=sys.stderr, flush=True)

    def _draw(self, text: str, elapsed_s: float) -> None:
        share = self._done / max(self._total, 1)
        bar = "#" * round(share * _BAR_WIDTH)
        left_s = elapsed_s / self._done * (self._total - self._done)
        line = f"[{bar:<{_BAR_WIDTH}}] {self._done}/{self._total} {text}, {left_s:.0f} s left"
        columns = shutil.get_terminal_size().columns
        sys.stderr.write("\r\x1b[K" + line[: columns - 1])
        sys.stderr.flush()

    def clear(self) -> None:
        """Removes the bar, so that a line can be printed."""
        if self._tty:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_) -> None:
        self.clear()
