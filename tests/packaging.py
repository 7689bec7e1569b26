"""Try the built package as a stranger would: ``python -m tests.packaging DIST``.

The wheel goes into a new environment with nothing but its own dependencies and a database driver.
There it must import, and its migrations must run in a new project, on a server that this process
lends it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from example_project.embedded import start_temporary

TOP_LEVEL = {"django_outbox"}


def main(dist: Path) -> None:
    """Check the wheel and the source distribution in ``dist``."""
    (wheel,) = dist.glob("*.whl")
    (source,) = dist.glob("*.tar.gz")
    check_wheel(wheel)
    check_source(source)
    with tempfile.TemporaryDirectory() as folder, start_temporary(durable=False) as server:
        python = install(wheel, Path(folder) / "venv")
        write_settings(Path(folder), server.url)
        run(python, folder, "-c", "import django_outbox; print(django_outbox.__file__)")
        run(python, folder, "-m", "django", "migrate", "--settings=project_settings")
        run(python, folder, "-m", "django", "check", "--settings=project_settings")
    print(f"{wheel.name} and {source.name} are good.")


def check_wheel(wheel: Path) -> None:
    """Find the package, typed, and nothing else."""
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == TOP_LEVEL, top
    assert "django_outbox/py.typed" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def check_source(source: Path) -> None:
    """Find the package and what it takes to build it."""
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "django_outbox/py.typed"} <= names, names


def install(wheel: Path, folder: Path) -> Path:
    """Make an environment with the wheel in it, and return its Python."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    run(python, folder, "-m", "pip", "install", "--quiet", str(wheel), "psycopg[binary]")
    return python


def write_settings(folder: Path, url: str) -> None:
    """Write the smallest project there is."""
    server = conninfo_to_dict(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": server["dbname"],
        "USER": server["user"],
        "HOST": server["host"],
        "PORT": server["port"],
    }
    lines = [
        "INSTALLED_APPS = ['django.contrib.contenttypes', 'django_outbox']",
        f"DATABASES = {{'default': {database!r}}}",
        "SECRET_KEY = 'unused'",
        "USE_TZ = True",
    ]
    (folder / "project_settings.py").write_text("\n".join(lines))


def run(python: Path, folder: Path | str, *arguments: str) -> None:
    """Run Python in the folder, where it cannot see this repository."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    subprocess.run([python, *arguments], cwd=folder, env=kept, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
