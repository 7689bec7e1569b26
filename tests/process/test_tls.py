"""Several processes on TLS connections: none ever uses another's."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.process.spare import Spare
from tests.process.stage import Stage
from tests.process.test_processes import pids
from tests.process.tls import TlsProxy
from tests.support import wait_until

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")

TROUBLE = ("bad record mac", "unexpected eof", "decryption failed", "SSL error")


def sockets(pid: int) -> list[str]:
    """Return the sockets that a process has open, but for its standard streams."""
    files = Path(f"/proc/{pid}/fd").iterdir()
    links = [str(file.readlink()) for file in files if int(file.name) > 2]
    return [link for link in links if link.startswith("socket:")]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_processes_and_forking_handlers_share_no_connection(
    stage: Stage, spare: Spare, tmp_path: Path
) -> None:
    # F15
    (folder,) = parse_qs(urlsplit(spare.url).query)["host"]
    names = [f"order {n}" for n in range(200)]
    with TlsProxy(Path(folder) / ".s.PGSQL.5432", tmp_path) as proxy:
        supervisor = stage.worker(
            "--processes",
            "4",
            "--concurrency",
            "2",
            database_url=f"postgres://postgres@127.0.0.1:{proxy.port}/postgres?sslmode=require",
            PGGSSENCMODE="disable",
            PYTHONWARNINGS="default",  # newer Pythons warn of forks beside threads
        )
        supervisor.wait_for_log("serves", times=4)
        wait_until(lambda: len(pids()) == 4)
        assert sockets(supervisor.pid) == []

        spare.publish_many(names, queue="forking")
        wait_until(lambda: not spare.messages.exists(), within=40)
        assert len(pids()) == 4
        assert supervisor.stop() == 0

    assert sorted(order.name for order in spare.orders) == sorted(f"{n} done" for n in names)
    assert proxy.sessions >= 4
    assert [trouble for trouble in TROUBLE if trouble in supervisor.log] == []
    assert "failed" not in supervisor.log
