"""The package as it was before one of its migrations, taken from the history of this clone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.process.stage import ROOT
from tests.support import wait_until
from tests.upgrade.tables import Tables


class Code:
    """One version of the package, run by processes of the site `tests.upgrade.shop`."""

    def __init__(self, name: str, folder: Path, tables: Tables, log: Path) -> None:
        self._folder = folder
        self._log = log
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PG")},
            "DATABASE_URL": tables.url,
            "DJANGO_SETTINGS_MODULE": "tests.settings_worker",
            "WORKER_APPS": "tests.upgrade.shop",
            "SHOP_CODE": name,
            # The package comes from the folder, and the site around it from here.
            "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        }

    def publish(self, first: int, last: int) -> None:
        """Publish orders of these numbers, and one message of each other kind."""
        package = self._run("tests.upgrade.shop.publish", str(first), str(last)).strip()
        assert Path(package) == self._folder / "django_outbox" / "__init__.py"

    def manage(self, *arguments: str) -> str:
        """Run a command to its end, and return what it has written."""
        return self._run("django", *arguments)

    def start_worker(self, *arguments: str) -> None:
        """Start a worker, and wait until it claims."""
        with self._log.open("wb") as log:
            command = [sys.executable, "-m", "django", "outbox_worker", "--no-reload", *arguments]
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        wait_until(lambda: "serves" in self.log, within=20)

    def stop(self) -> None:
        """Stop the workers, which must end well."""
        for process in self._processes:
            process.terminate()
        codes = [process.wait(30) for process in self._processes]
        self._processes.clear()
        assert set(codes) <= {0}, self.log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _run(self, module: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            check=False,
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout
