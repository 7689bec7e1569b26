"""The faults: each breaks something for a while, leaves all whole again, and says what it did."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

import psycopg

from tests.faults.fleet import ROOT, Program
from tests.faults.proxy import Proxy
from tests.faults.queues import LEASE_TTL
from tests.faults.site import DATABASE, ROLE, Site

Lane = Literal["processes", "database"]
"""Faults of one lane happen one after the other, those of two at the same time."""

Breaking = Callable[[Site, Random], str]
SCHEDULER_TTL = 10.0
MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Fault:
    name: str
    lane: Lane
    run: Breaking
    can_run: Callable[[Site], bool]
    weight: int
    """How often it comes in a round in which every fault comes."""


FAULTS: list[Fault] = []


class NotDone(Exception):
    """Raised by a fault that found nothing to break."""


def fault(
    lane: Lane,
    name: str,
    *,
    can_run: Callable[[Site], bool] = lambda site: True,
    weight: int = 1,
) -> Callable[[Breaking], Breaking]:
    def register(run: Breaking) -> Breaking:
        FAULTS.append(Fault(name, lane, run, can_run, weight))
        return run

    return register


@fault("processes", "kill a worker")
def kill_worker(site: Site, chance: Random) -> str:
    program = chance.choice(site.fleet.named("worker-"))
    program.signal(signal.SIGKILL)
    return f"SIGKILL to {program.name}"


@fault("processes", "pause a worker past its leases", weight=3)
def pause_worker(site: Site, chance: Random) -> str:
    program = chance.choice(site.fleet.named("worker-"))
    seconds = LEASE_TTL + chance.uniform(1, 3)
    _pause(site, program, seconds)
    return f"SIGSTOP to {program.name} for {seconds:.1f} s"


@fault("processes", "kill the leading scheduler")
def kill_leader(site: Site, chance: Random) -> str:
    program = _leader(site)
    program.signal(signal.SIGKILL)
    return f"SIGKILL to {program.name}, which led"


@fault("processes", "pause the leading scheduler past its lease")
def pause_leader(site: Site, chance: Random) -> str:
    program = _leader(site)
    seconds = SCHEDULER_TTL + chance.uniform(1, 3)
    _pause(site, program, seconds)
    return f"SIGSTOP to {program.name}, which led, for {seconds:.1f} s"


@fault("processes", "isolate a worker past its leases", weight=3)
def isolate_worker(site: Site, chance: Random) -> str:
    program = chance.choice(site.fleet.named("worker"))
    return _isolate(site, program, LEASE_TTL + chance.uniform(1, 3), chance.random() < 0.3)


@fault("processes", "isolate the leading scheduler past its lease")
def isolate_leader(site: Site, chance: Random) -> str:
    seconds = SCHEDULER_TTL + chance.uniform(1, 3)
    return _isolate(site, _leader(site), seconds, chance.random() < 0.3)


@fault("processes", "kill a child of the supervisor")
def kill_child(site: Site, chance: Random) -> str:
    (supervisor,) = site.fleet.named("workers")
    if not site.wait_until(lambda: len(supervisor.children()) > 0, within=10):
        raise NotDone("the supervisor had no children")
    child = chance.choice(sorted(supervisor.children()))
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    return "SIGKILL to one of the processes of --processes 2"


@fault("processes", "kill the supervisor")
def kill_supervisor(site: Site, chance: Random) -> str:
    (supervisor,) = site.fleet.named("workers")
    supervisor.signal(signal.SIGKILL)
    return "SIGKILL to the supervisor of --processes 2, whose processes must stop by themselves"


@fault("processes", "kill a publisher")
def kill_publisher(site: Site, chance: Random) -> str:
    program = chance.choice(site.fleet.named("publisher"))
    program.signal(signal.SIGKILL)
    return f"SIGKILL to {program.name}"


@fault("processes", "pause a publisher")
def pause_publisher(site: Site, chance: Random) -> str:
    program = chance.choice(site.fleet.named("publisher"))
    seconds = chance.uniform(1, 4)
    _pause(site, program, seconds)
    return f"SIGSTOP to {program.name} for {seconds:.1f} s, perhaps in a transaction"


@fault("processes", "deploy")
def deploy(site: Site, chance: Random) -> str:
    """Stop one program after the other in good order; new ones come beside those still old."""
    codes = []
    for program in [*site.fleet.named("worker"), *site.fleet.named("scheduler")]:
        if site.calm.is_set():
            break
        codes.append(f"{program.name} {_restart_from(site, program, ROOT)}")
    return f"rolling restart by SIGTERM; exit codes: {', '.join(codes)}"


@fault("processes", "go back to older code", can_run=lambda site: site.older is not None)
def go_back(site: Site, chance: Random) -> str:
    """Put some programs back to the version before, run both side by side, and come forward."""
    assert site.older is not None
    programs = [*site.fleet.named("worker"), *site.fleet.named("scheduler")]
    gone_back = chance.sample(programs, chance.randint(1, len(programs) - 1))
    seconds = chance.uniform(5, 10)
    with ExitStack() as stack:
        for program in gone_back:
            stack.callback(_restart_from, site, program, ROOT)
            _restart_from(site, program, site.older)
        site.hold(seconds)
    names = ", ".join(program.name for program in gone_back)
    return f"{names} ran the version before beside the others, for {seconds:.1f} s"


@fault("processes", "shift a clock by an hour", can_run=lambda site: bool(site.clocks))
def shift_clock(site: Site, chance: Random) -> str:
    name = chance.choice(sorted(site.clocks))
    hours, seconds = chance.choice([-1, 1]), chance.uniform(4, 8)
    with ExitStack() as stack:
        site.clocks[name].shift(hours * 3600)
        stack.callback(site.clocks[name].shift, 0)
        site.hold(seconds)
    return f"the clock of {name} was {hours:+d} h off for {seconds:.1f} s"


@fault("database", "terminate backends")
def terminate_backends(site: Site, chance: Random) -> str:
    share = chance.uniform(0.2, 1)
    ended = site.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE usename = %s AND random() < %s",
        ROLE,
        share,
    )
    return f"pg_terminate_backend for {len(ended)} sessions"


@fault("database", "restart PostgreSQL, fast")
def restart_fast(site: Site, chance: Random) -> str:
    seconds = chance.uniform(0, 4)
    return _restart(site, "fast", seconds)


@fault("database", "crash PostgreSQL")
def restart_immediate(site: Site, chance: Random) -> str:
    seconds = chance.uniform(0, 4)
    return _restart(site, "immediate", seconds)


@fault("database", "kill a backend by SIGKILL")
def kill_backend(site: Site, chance: Random) -> str:
    """As the system does when memory is short; PostgreSQL then ends all sessions and recovers.

    The fault lasts until it has: PostgreSQL 18 may never end that is stopped in the middle of it.
    """
    pids = site.query(
        "SELECT pid FROM pg_stat_activity WHERE usename = %s AND backend_type = 'client backend'"
        " ORDER BY pid",
        ROLE,
    )
    if not pids:
        raise NotDone("there was no backend")
    (pid,) = chance.choice(pids)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    left = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
    site.wait_until(lambda: site.query(left, pid) == [(0,)], within=60)
    return "SIGKILL to one backend: PostgreSQL ended all sessions and recovered"


@fault("database", "make the database read-only")
def make_read_only(site: Site, chance: Random) -> str:
    seconds = chance.uniform(1, 5)
    on = f"ALTER DATABASE {DATABASE} SET default_transaction_read_only = on"
    off = f"ALTER DATABASE {DATABASE} RESET default_transaction_read_only"
    is_for_all = chance.random() < 0.5
    if is_for_all:
        on = "ALTER SYSTEM SET default_transaction_read_only = on"
        off = "ALTER SYSTEM RESET default_transaction_read_only"
    with ExitStack() as stack:
        site.execute(on, "SELECT pg_reload_conf()")
        stack.callback(site.execute, off, "SELECT pg_reload_conf()")
        if not is_for_all:
            _terminate_all(site)
        site.hold(seconds)
    if not is_for_all:
        _terminate_all(site)
    reach = "for all sessions" if is_for_all else "for new sessions, and the old ones ended"
    return f"default_transaction_read_only {reach}, for {seconds:.1f} s"


@fault("database", "use up the connection slots")
def use_up_slots(site: Site, chance: Random) -> str:
    seconds = chance.uniform(2, 6)
    with ExitStack() as stack:
        count = _take_slots(site, stack)
        _terminate_all(site, besides="hog")
        count += _take_slots(site, stack)
        site.hold(seconds)
    return f"{count} idle sessions took all slots, and the others were ended, for {seconds:.1f} s"


@fault("database", "fill the disk", can_run=lambda site: site.disk is not None)
def fill_disk(site: Site, chance: Random) -> str:
    seconds = chance.uniform(2, 6)
    assert site.disk is not None
    ballast = site.disk.parent / "ballast"
    with ExitStack() as stack:
        stack.callback(ballast.unlink, missing_ok=True)
        free = _fill(ballast)
        site.hold(seconds)
    return f"the last {free >> 20} MiB of the file system of the database taken, {seconds:.1f} s"


@fault("database", "lock the table")
def lock_table(site: Site, chance: Random) -> str:
    seconds = chance.uniform(1, 4)
    with site.session() as session, session.transaction():
        session.execute("LOCK TABLE django_outbox_message IN ACCESS EXCLUSIVE MODE")
        site.hold(seconds)
    return f"ACCESS EXCLUSIVE on the messages for {seconds:.1f} s, as a migration takes it"


@fault("database", "cut the network")
def cut_network(site: Site, chance: Random) -> str:
    seconds = chance.uniform(1, 5)
    _break_network(site, Proxy.cut, seconds)
    return f"every connection cut, and new ones refused, for {seconds:.1f} s"


@fault("database", "stall the network")
def stall_network(site: Site, chance: Random) -> str:
    seconds, is_reset = chance.uniform(2, LEASE_TTL + 4), chance.random() < 0.5
    _break_network(site, lambda proxy: proxy.stalled(is_reset=is_reset), seconds)
    return f"nothing passed for {seconds:.1f} s; {_end_of_stall(is_reset)}"


@fault("database", "delay the network")
def delay_network(site: Site, chance: Random) -> str:
    delay, seconds = chance.uniform(0.02, 0.3), chance.uniform(3, 8)
    _break_network(site, lambda proxy: proxy.delayed(delay), seconds)
    return f"{delay * 1000:.0f} ms each way for {seconds:.1f} s"


@fault("database", "lose the answers")
def lose_answers(site: Site, chance: Random) -> str:
    seconds = chance.uniform(0.3, 2)
    _break_network(site, Proxy.deaf, seconds)
    return f"requests arrived, and connections broke instead of an answer, for {seconds:.1f} s"


@fault("database", "start on a flaky network")
def start_on_a_flaky_network(site: Site, chance: Random) -> str:
    seconds = chance.uniform(3, 6)
    for program in site.fleet.named("worker-"):
        program.signal(signal.SIGKILL)
    _break_network(site, Proxy.flaky, seconds)
    return (
        f"SIGKILL to workers; connections cut, and for {seconds:.1f} s every other new one broke "
        "when it was logged in"
    )


def _restart_from(site: Site, program: Program, code: Path) -> int | None:
    """Stop a program in good order, wait until it runs this code, and return its exit code."""
    before = program.starts
    program.code = code
    ended = program.stop()
    site.wait_until(lambda: program.starts > before and program.is_ready, within=10)
    return ended


def _leader(site: Site) -> Program:
    found: list[Program] = []

    def leads() -> bool:
        program = site.leader()
        found[:] = [program] if program is not None else []
        return bool(found)

    if not site.wait_until(leads, within=15):
        raise NotDone("no scheduler led within 15 s")
    return found[0]


def _pause(site: Site, program: Program, seconds: float) -> None:
    with ExitStack() as stack:
        program.signal(signal.SIGSTOP)
        stack.callback(program.signal, signal.SIGCONT)
        site.hold(seconds)


def _isolate(site: Site, program: Program, seconds: float, is_reset: bool) -> str:
    """Stall the network of one program, while the others go on with what it had."""
    with site.proxies[program.name].stalled(is_reset=is_reset):
        site.hold(seconds)
    return f"nothing passed for {program.name} for {seconds:.1f} s; {_end_of_stall(is_reset)}"


def _break_network(
    site: Site, how: Callable[[Proxy], AbstractContextManager[object]], seconds: float
) -> None:
    """Have something wrong with each program's way to the server for a while."""
    with ExitStack() as stack:
        for proxy in site.proxies.values():
            stack.enter_context(how(proxy))
        site.hold(seconds)


def _end_of_stall(is_reset: bool) -> str:
    return "the connections then broke" if is_reset else "then all of it arrived"


def _restart(site: Site, mode: Literal["fast", "immediate"], seconds: float) -> str:
    with ExitStack() as stack:
        stack.callback(site.server.resume)
        site.server.halt(mode)
        site.hold(seconds)
    return f"pg_ctl stop -m {mode}, started again after {seconds:.1f} s"


def _terminate_all(site: Site, *, besides: str = "") -> None:
    site.query(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE usename = %s AND application_name <> %s",
        ROLE,
        besides or "nobody",
    )


def _take_slots(site: Site, stack: ExitStack) -> int:
    """Open connections until the server has none left for those who are not superusers."""
    count = 0
    with suppress(psycopg.OperationalError):
        while True:
            hog = psycopg.connect(
                site.server.url, dbname=DATABASE, user=ROLE, application_name="hog"
            )
            stack.callback(hog.close)
            count += 1
    return count


def _fill(ballast: Path) -> int:
    """Write a file until nothing more fits, and return its size."""
    size = max(0, shutil.disk_usage(ballast.parent).free - MEBIBYTE)
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, size)
        file.seek(size)
        while True:
            size += file.write(b"\0" * 4096)
    return size
