"""The world outside the shop, made up: a slow bank that sometimes declines, and a carrier.

Both sleep, because that is what waiting for another company's server looks like.
"""

from __future__ import annotations

import time
from decimal import Decimal
from uuid import UUID


class Declined(Exception):
    """The bank does not pay this time."""


def charge(amount: Decimal, *, key: UUID, attempt: int) -> str:
    """Move the money and return a receipt; asked again with the same key, move nothing more.

    Takes 5 to 30 ms. One key in eight is declined at first, one in sixteen twice.
    """
    time.sleep(0.005 + key.int % 26 / 1000)
    refusals = 2 if key.int % 16 == 0 else 1 if key.int % 16 == 8 else 0
    if attempt <= refusals:
        raise Declined(f"The bank declined {amount}, try again later")
    return f"receipt-{key.hex[:12]}"


def print_label(key: UUID) -> str:
    """Return the tracking number of a parcel; the same key gives the same one. Takes 2 ms."""
    time.sleep(0.002)
    return f"parcel-{key.hex[:12]}"
