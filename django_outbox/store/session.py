"""What the session of a worker's loop is told before its first statement.

Each statement of the loop finds its rows by an index and takes few of them. The planner can think
otherwise: with statistics from when the table was empty, or full of what a rolled-back load has
left, it would sort a queue or read all of the table.
"""

from __future__ import annotations

from . import Cursor

OTHER_WAYS = ("bitmapscan", "hashjoin", "mergejoin", "seqscan", "sort")
"""What the planner is to take only where no index will do."""

ALONG_INDEXES = "SELECT " + ", ".join(
    f"set_config('enable_{way}', 'off', false)" for way in OTHER_WAYS
)


def go_along_indexes(cursor: Cursor) -> None:
    """Have the planner prefer indexes for as long as the session lasts."""
    cursor.execute(ALONG_INDEXES, {})
