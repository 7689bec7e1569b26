"""What a loop sleeps on: a socket, and a pipe that threads and signals write to."""

from __future__ import annotations

import selectors
import socket as sockets
import time
from collections.abc import Callable
from contextlib import suppress

_Selector: type[selectors.BaseSelector] = getattr(
    selectors, "PollSelector", selectors.DefaultSelector
)

LOOK_EVERY = 0.05
"""Seconds after which to look for what can be read, though there is something else to do."""

LONGEST_SLEEP = 60.0
"""Seconds; what a selector can wait for has a limit, and nothing here needs to come near it."""


class Wakeup:
    """A sleep that can be ended from any thread and from a signal handler."""

    def __init__(self) -> None:
        # With epoll each registration would be a system call, at which the loop lets go of the
        # interpreter to busy handler threads, and gets it back after five milliseconds.
        self._selector = _Selector()
        self._receiver, self._sender = sockets.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._selector.register(self._receiver, selectors.EVENT_READ)
        self._asleep = False
        self._look_at = 0.0

    def wake(self) -> None:
        """End the sleep, if there is one."""
        if self._asleep:
            with suppress(OSError):  # full, so it is being woken already; or closed by now
                self._sender.send(b"\0")

    def sleep(self, seconds: float, *, socket: int | None, unless: Callable[[], bool]) -> bool:
        """Sleep until woken, the socket is readable, or the time is over; tell if it is readable.

        `unless` is asked after `wake` has begun to count, so that what happens just before the
        sleep is not slept through.
        """
        # Registered anew each time: another connection may have got the number of a closed one.
        if socket is not None:
            self._selector.register(socket, selectors.EVENT_READ)
        self._asleep = True
        try:
            now = time.monotonic()
            timeout = min(max(0.0, seconds), LONGEST_SLEEP)
            if unless():
                # To look costs a busy loop its turn among the threads.
                if now < self._look_at:
                    return False
                timeout = 0.0
            self._look_at = now + LOOK_EVERY
            ready = {key.fd for key, _ in self._selector.select(timeout)}
        finally:
            self._asleep = False
            if socket is not None:
                self._selector.unregister(socket)
        if self._receiver.fileno() in ready:
            with suppress(BlockingIOError):
                while self._receiver.recv(4096):
                    pass
        return socket in ready

    def close(self) -> None:
        """Close the pipe and the selector."""
        self._selector.close()
        self._receiver.close()
        self._sender.close()
