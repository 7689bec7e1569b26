"""What the demo writes: short lines, coloured and with progress only on a terminal."""

from __future__ import annotations

import time

from django.core.management.base import BaseCommand

WIDTH = 78
PAUSE = 0.1
"""Seconds between two updates of the progress."""


class Screen:
    """The command's standard output."""

    def __init__(self, command: BaseCommand) -> None:
        self._out = command.stdout
        self._style = command.style
        self._live = command.stdout.isatty()
        self._shown_at = 0.0

    def title(self, text: str) -> None:
        self._line(self._style.MIGRATE_HEADING(text))

    def say(self, text: str) -> None:
        self._line(f"   {text}")

    def verdict(self, *, good: bool, text: str) -> None:
        """Write the outcome of a check."""
        mark = self._style.SUCCESS("ok  ") if good else self._style.ERROR("FAIL")
        self._line(f"   {mark} {text}")

    def end(self, *, good: bool, text: str) -> None:
        self._line((self._style.SUCCESS if good else self._style.ERROR)(text))

    def progress(self, text: str) -> None:
        """Show how far a step has come, to be replaced by the next line."""
        if self._live and time.monotonic() - self._shown_at > PAUSE:
            self._shown_at = time.monotonic()
            self._out.write(f"\r   {text[: WIDTH - 3]:<{WIDTH - 3}}", ending="")
            self._out.flush()

    def _line(self, text: str) -> None:
        if self._shown_at:
            self._out.write("\r" + " " * WIDTH + "\r", ending="")
            self._shown_at = 0.0
        self._out.write(text)
        self._out.flush()
