"""Run a management command and note its statements: `python -m benchmarks.counted COMMAND …`.

A line for each kind of statement goes to the file in `BENCH_STATEMENTS`. With `BENCH_LOCKSTEP` the
process keeps to the lockstep.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext

from benchmarks import lockstep


def main() -> None:
    """Run the command in the arguments."""
    from django.core.management import execute_from_command_line

    from benchmarks.statements import recording

    notes = os.open(os.environ["BENCH_STATEMENTS"], os.O_WRONLY | os.O_APPEND)
    pace = lockstep.kept() if os.environ.get("BENCH_LOCKSTEP") else nullcontext()
    with pace, recording(lambda kind: os.write(notes, f"{kind}\n".encode())):
        execute_from_command_line(["manage.py", *sys.argv[1:]])


if __name__ == "__main__":
    main()
