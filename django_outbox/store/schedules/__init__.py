"""The statements on `django_outbox_schedule`, and the one that inserts what is fired.

A schedule is written (`writing`) and fired (`ticking`); `reading` is for people.
"""

from .reading import Standing, clock, standings
from .ticking import (
    Advance,
    Candidate,
    Fire,
    advance,
    bound_waits,
    check_now,
    fail,
    fire,
    hold,
    lock_due,
    read,
    soonest,
)
from .writing import (
    Plan,
    Written,
    add,
    be_the_one_writer,
    delete,
    planned_for,
    switch,
    upsert,
    withdraw,
    written,
)

__all__ = [
    "Advance",
    "Candidate",
    "Fire",
    "Plan",
    "Standing",
    "Written",
    "add",
    "advance",
    "be_the_one_writer",
    "bound_waits",
    "check_now",
    "clock",
    "delete",
    "fail",
    "fire",
    "hold",
    "lock_due",
    "planned_for",
    "read",
    "soonest",
    "standings",
    "switch",
    "upsert",
    "withdraw",
    "written",
]
