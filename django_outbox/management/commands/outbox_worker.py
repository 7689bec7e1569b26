"""Deliver messages to their handlers until stopped."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import FrameType
from typing import Any, NoReturn
from uuid import uuid4

import django
import psycopg
from django.conf import settings as django_settings
from django.core.management import call_command
from django.core.management.base import CommandError, CommandParser
from django.db import Error as DatabaseError
from django.db import connections

from ... import names, pooled
from ...errors import summary
from ...handlers import Handler, registry
from ...scheduling.running import scheduler_thread
from ...worker import reloading
from ...worker.loop import Options, Worker
from ...worker.processes import Supervisor, is_supervised
from ..base import OutboxCommand, check_schedules, log_to_stderr, number

_FOR_PROCESSES = (
    "queues",
    "concurrency",
    "batch_size",
    "drain",
    "max_messages",
    "shutdown_timeout",
    "with_scheduler",
    "verbosity",
)
"""The options that go on to each of several processes."""

SAME_SIGNAL = 0.5
"""Seconds within which a reloading worker takes two signals for one.

A terminal sends its CTRL-C to the child and to the parent, which passes it on.
"""


class Command(OutboxCommand):
    help = (
        "Deliver the messages of every queue that has a handler. SIGTERM and SIGINT let running "
        "handlers finish, hand the rest back and exit 0 (1 if something had to be left to its "
        "lease); a second signal exits at once."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--queue",
            action="append",
            dest="queues",
            metavar="NAME",
            help=(
                "Serve only this queue. Given several times: strict priority, the first queue "
                "before the second. Without it all queues are served in turn."
            ),
        )
        parser.add_argument(
            "--concurrency",
            type=number(int, least=1, what="positive whole number"),
            default=Options.concurrency,
            metavar="N",
            help=(
                "Handlers that run at once, each in a thread with a database connection of its "
                "own; the worker needs one connection more (default: %(default)s)."
            ),
        )
        parser.add_argument(
            "--batch-size",
            type=number(int, least=1, what="positive whole number"),
            default=Options.batch_size,
            metavar="N",
            help="Messages claimed by one statement at the most (default: %(default)s).",
        )
        parser.add_argument(
            "--drain",
            action="store_true",
            help=(
                "Work off what is due, and what handlers publish meanwhile, then exit. Retries "
                "that are due later are not waited for."
            ),
        )
        parser.add_argument(
            "--max-messages",
            type=number(int, least=1, what="positive whole number"),
            metavar="N",
            help="Exit after this many messages, against leaks of memory in handlers.",
        )
        parser.add_argument(
            "--shutdown-timeout",
            type=number(float, least=0, what="number of seconds"),
            default=Options.shutdown_timeout,
            metavar="S",
            help="Seconds that running handlers get to finish when stopped (default: %(default)g).",
        )
        parser.add_argument(
            "--worker-id",
            metavar="ID",
            help="What to call this worker in `leased_by` and in logs (default: host:pid:random).",
        )
        parser.add_argument(
            "--processes",
            type=number(int, least=1, what="positive whole number"),
            default=1,
            metavar="N",
            help=(
                "Run so many workers, each in a process of its own with --concurrency threads, "
                "and start those again that end by accident (default: %(default)s)."
            ),
        )
        parser.add_argument(
            "--with-scheduler",
            action="store_true",
            help=(
                "Also run a scheduler, in a thread with a connection of its own; enough for a "
                "small site."
            ),
        )
        reload = parser.add_mutually_exclusive_group()
        reload.add_argument(
            "--reload",
            action="store_true",
            default=None,
            help="Restart when code changes (default: as DEBUG says).",
        )
        reload.add_argument("--no-reload", action="store_false", dest="reload")

    def handle(self, *args: Any, **options: Any) -> None:
        # What the supervisor says is said to all its processes, whose log is one.
        is_alone = multiprocessing.parent_process() is None
        log_to_stderr(options["verbosity"], whose="" if is_alone else options["worker_id"] or "")
        reload = django_settings.DEBUG and not options["drain"]
        if options["reload"] is not None:
            reload = options["reload"]
        if reload and not reloading.is_child():
            sys.exit(reloading.supervise())
        signals = Signals()
        handlers = self._handlers(options["queues"])
        worker_id = self._worker_id(options["worker_id"])
        alias = self.ready_database(options["database"])
        _check_pool(alias, options["concurrency"])
        _check_session(alias)
        if options["with_scheduler"]:
            check_schedules()
        if options["processes"] > 1:
            self._supervise(signals, worker_id, alias, options, reload=reload)
            return
        worker = Worker(
            handlers,
            Options(
                using=alias,
                worker_id=worker_id,
                concurrency=options["concurrency"],
                batch_size=options["batch_size"],
                strict=bool(options["queues"]),
                drain=options["drain"],
                max_messages=options["max_messages"],
                shutdown_timeout=options["shutdown_timeout"],
            ),
        )
        connections.close_all()  # the worker counts its connections, and this one is not of them
        signals.stop(worker)
        if options["verbosity"] > 0:
            also = ", and runs a scheduler" if options["with_scheduler"] else ""
            self.stderr.write(
                f"Worker {worker_id} serves {', '.join(handlers)} on {alias!r} with "
                f"{options['concurrency']} thread(s){also}.{' Stop it with CTRL-C.' * is_alone}"
            )
        code = 1
        try:
            with (
                scheduler_thread(alias) if options["with_scheduler"] else nullcontext(),
                _frozen_heap(),
            ):
                code = self._run(worker, signals, reload=reload)
        finally:
            if worker.has_stuck_handlers:
                _leave_at_once(code)
        if code:
            sys.exit(code)

    def _supervise(
        self, signals: Signals, worker_id: str, alias: str, options: dict[str, Any], *, reload: bool
    ) -> None:
        connections.close_all()  # only its processes need any
        kept = {name: options[name] for name in _FOR_PROCESSES}
        supervisor = Supervisor(
            options["processes"],
            run_process,
            {**kept, "worker_id": worker_id, "database": alias},
            restarts=not options["drain"],
            shutdown_timeout=options["shutdown_timeout"],
        )
        signals.stop(supervisor)
        if options["verbosity"] > 0:
            self.stderr.write(f"{options['processes']} processes. Stop them with CTRL-C.")
        if code := self._run(supervisor, signals, reload=reload):
            sys.exit(code)

    def _run(self, worker: Worker | Supervisor, signals: Signals, *, reload: bool) -> int:
        try:
            if reload:
                with reloading.watch(worker.stop) as changes:
                    return changes.exit_code(worker.run(), stopped=bool(signals.received))
            return worker.run()
        except psycopg.Error as error:
            raise CommandError(
                f"The database refused a statement of the worker: {summary(error)}. Look at the "
                "privileges of its user, and whether the migrations are those of this version."
            ) from error

    def _handlers(self, queues: list[str] | None) -> dict[str, Handler]:
        served = dict.fromkeys(registry if queues is None else queues)
        unknown = [queue for queue in served if registry.get(queue) is None]
        known = ", ".join(registry) or "none at all"
        if unknown:
            raise CommandError(
                f"No handler is registered for {', '.join(map(repr, unknown))}. Queues with a "
                f"handler: {known}. Handlers are found in the module outbox_handlers of each "
                "installed app."
            )
        if not served:
            raise CommandError(
                "No handler is registered, so there is nothing to do. Put functions decorated "
                "with @outbox.handler('queue') into the module outbox_handlers of an installed app."
            )
        return {queue: handler for queue in served if (handler := registry.get(queue))}

    def _worker_id(self, given: str | None) -> str:
        if given is None:
            return f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:6]}"[-names.MAX_LENGTH :]
        if flaw := names.flaw_in_name(given):
            raise CommandError(f"--worker-id {flaw}.")
        return given


@contextmanager
def _frozen_heap() -> Iterator[None]:
    """Spare garbage collections the look at all that is loaded by now and stays.

    It took a busy worker a fourth of its time.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def run_process(options: dict[str, Any], number: int, start: int) -> None:
    """Be one of several worker processes; the first of them has the scheduler.

    One that takes the place of another has an id of its own: the leases of the other are not its.
    """
    django.setup()
    again = "" if start == 1 else f".{start}"
    own = {
        "worker_id": f"{options['worker_id']}:{number}{again}"[-names.MAX_LENGTH :],
        "with_scheduler": options["with_scheduler"] and number == 1,
        "reload": False,
    }
    try:
        call_command("outbox_worker", **{**options, **own})
    except CommandError as error:
        sys.exit(f"CommandError: {error}")


def _check_pool(alias: str, threads: int) -> None:
    """See that Django's connection pool has a connection for every handler thread.

    The loop and the scheduler have connections of their own.
    """
    pool = connections[alias].settings_dict.get("OPTIONS", {}).get("pool")
    if not pool:
        return
    limits = pool if isinstance(pool, dict) else {}
    size = limits.get("max_size") or limits.get("min_size", 4)  # as psycopg_pool has it
    if size < threads:
        raise CommandError(
            f"{threads} threads need as many connections, and the pool of the database "
            f"{alias!r} has {size}. Raise its max_size, or lower --concurrency."
        )


def _check_session(alias: str) -> None:
    """See that the session which a worker takes for its own is not given to others.

    A database only to listen on may be away: the worker polls until it is back.
    """
    with suppress(DatabaseError):
        if flaw := pooled.flaw(alias):
            raise CommandError(f"{flaw.what} {flaw.mend}")


class Signals:
    """SIGTERM and SIGINT: the first stops the worker in good order, the second ends the process.

    They are taken as soon as the command begins; `received` are those that came. One of several
    processes leaves the second to its supervisor: systemd sends the first to all of a service, and
    the supervisor passes it on.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._worker: Worker | Supervisor | None = None
        self._first = 0.0
        signal.signal(signal.SIGTERM, self._take)
        signal.signal(signal.SIGINT, self._take)

    def stop(self, worker: Worker | Supervisor) -> None:
        """Stop this worker at the first signal, at once if it has come already."""
        self._worker = worker
        if self.received:
            worker.stop()

    def _take(self, signum: int, frame: FrameType | None) -> None:
        if not self.received:
            self._first = time.monotonic()
        elif not (is_supervised() or self._is_same_signal()):
            if isinstance(self._worker, Supervisor):
                self._worker.kill()
            os._exit(128 + signum)
        self.received.append(signum)
        if self._worker is not None:
            self._worker.stop()

    def _is_same_signal(self) -> bool:
        return reloading.is_child() and time.monotonic() - self._first < SAME_SIGNAL


def _leave_at_once(code: int) -> NoReturn:
    """End the process although a handler still runs.

    An async handler runs in a thread of an executor, which Python would wait for.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
