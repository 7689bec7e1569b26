"""The statements on `django_outbox_message`, each beside the function that runs it.

A message is inserted (`publishing`), claimed under a fresh token (`claiming`), and then settled by
whoever has that token (`settling`); `reading` is for tests and for people, `operating` for what
people do to messages by hand.
"""

from .claiming import Lane, claim, first_due, first_of, soonest
from .publishing import cancel_timer, insert, insert_many
from .reading import QueueCounts, Stored, counts, live
from .settling import (
    bury,
    complete,
    complete_here,
    complete_one,
    complete_unlocked,
    lock,
    lock_free,
    release,
    renew,
    retry,
    still_held,
)

__all__ = [
    "Lane",
    "QueueCounts",
    "Stored",
    "bury",
    "cancel_timer",
    "claim",
    "complete",
    "complete_here",
    "complete_one",
    "complete_unlocked",
    "counts",
    "first_due",
    "first_of",
    "insert",
    "insert_many",
    "live",
    "lock",
    "lock_free",
    "release",
    "renew",
    "retry",
    "soonest",
    "still_held",
]
