"""Older code of the package, taken from the history of this clone."""

from __future__ import annotations

import io
import subprocess
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class NoHistory(Exception):
    """This is no clone, or one that does not reach back so far."""


def unpack_before(migration: str, folder: Path) -> Path:
    """Put the last package that lacked the migration into the folder, and return the folder."""
    path = f"django_outbox/migrations/{migration}.py"
    try:
        added = _git("log", "--diff-filter=A", "--format=%H", "--", path).decode().split()[-1]
        package = _git("archive", "--format=zip", f"{added}^", "django_outbox")
    except (OSError, IndexError, subprocess.CalledProcessError) as error:
        message = f"This clone has no history to take older code from: {error}"
        raise NoHistory(message) from error
    with zipfile.ZipFile(io.BytesIO(package)) as archive:
        archive.extractall(folder)
    assert not (folder / path).exists()
    return folder


def _git(*arguments: str) -> bytes:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True).stdout
