"""Tools for the tests of an app that publishes and handles messages.

`drain`, `published` and `assert_published` work in a plain `TestCase`, on the test's own connection
and in its transaction, with the real tables. `FakeOutbox` takes their place where there is no
database.
"""

from .fake import FakeOutbox
from .messages import StoredMessage, assert_published, drain, published, tick_schedules

__all__ = [
    "FakeOutbox",
    "StoredMessage",
    "assert_published",
    "drain",
    "published",
    "tick_schedules",
]
