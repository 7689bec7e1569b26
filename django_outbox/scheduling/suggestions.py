"""What may be meant by a spec that cannot be read. Pure.

These are guesses, and not all of them can be read either; `specs` offers those that can. Where it
is unsure what was meant there is no guess, since one that is wrong would be copied.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches

from .fields import FIELDS, Field

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("d", "day", "days"), "d"),
    **dict.fromkeys(("w", "week", "weeks"), "w"),
}
_SHORTHANDS = {
    "hourly": "0 * * * *",
    "daily": "0 0 * * *",
    "midnight": "0 0 * * *",
    "weekly": "0 0 * * 0",
    "monthly": "0 0 1 * *",
    "yearly": "0 0 1 1 *",
    "annually": "0 0 1 1 *",
}
_QUANTITY = re.compile(r"(?:\s*[0-9]{1,9}\s*[a-z]+)+")
_PART = re.compile(r"([0-9]+)\s*([a-z]+)")


def suggestions(spec: str, *, zones: Collection[str]) -> list[str]:
    """Return what may be meant by `spec`, given the zones that there are."""
    return _intervals(spec.strip().lower()) or _crons(spec.split(), zones)


def _intervals(text: str) -> list[str]:
    """Return what an interval such as `5 minutes` or `@every 1h30m` may mean."""
    quantity = re.sub(r"^@?every\s*", "", text)
    if quantity != text and re.fullmatch("[0-9]{1,9}", quantity):
        return [f"@every {int(quantity)}{unit}" for unit in "sm"]
    if not _QUANTITY.fullmatch(quantity):
        return []
    parts = [(int(count), _UNITS.get(word, "")) for count, word in _PART.findall(quantity)]
    units = [unit for _, unit in parts]
    if units != [unit for unit in reversed(_SECONDS) if unit in units]:
        return []  # unknown, twice, or out of order
    seconds = sum(count * _SECONDS[unit] for count, unit in parts)
    smallest = units[-1].replace("w", "d")
    return [f"@every {seconds // _SECONDS[smallest]}{smallest}"]


def _crons(words: list[str], zones: Collection[str]) -> list[str]:
    """Return what five fields or a shorthand such as `@daily` may mean, and the zone after them."""
    if words and words[0].lower() in ("@cron", "cron"):
        words = words[1:]
    if words and (fields := _SHORTHANDS.get(words[0].lower().removeprefix("@"))):
        words = [*fields.split(), *words[1:]]
    if len(words) < 5:
        return []
    texts = [_forward(text, field) for text, field in zip(words, FIELDS, strict=False)]
    cron = " ".join(["@cron", *texts])
    return [f"{cron} {zone}" for zone in _zones(words[5:], zones)] if words[5:] else [cron]


def _forward(text: str, field: Field) -> str:
    return ",".join(_forward_part(part, field) for part in text.split(","))


def _forward_part(part: str, field: Field) -> str:
    """Return a range that runs backwards, such as `22-6`, as ranges that do not."""
    first, _, last = part.partition("-")
    try:
        low, high = field.value(first), field.value(last)
    except ValueError:
        return part
    if low <= high:
        return part
    start = 1 if field.high == 7 else field.low  # Sunday is 7, too
    return ",".join(
        _range(*ends) for ends in ((low, field.high), (start, high)) if ends[0] <= ends[1]
    )


def _range(low: int, high: int) -> str:
    return f"{low}-{high}" if low < high else f"{low}"


def _zones(words: list[str], zones: Collection[str]) -> list[str]:
    """Return the zones that a name in the wrong case, without its area or mistyped may mean."""
    name = "_".join(words)
    if same := sorted(zone for zone in zones if zone.lower() == name.lower()):
        return same
    if len(words) > 1 or re.fullmatch("[A-Z]{1,4}", name):
        return []  # a sixth field, or an abbreviation, whose WEST is not Australia/West
    area, slash, place = name.lower().rpartition("/")
    if not re.fullmatch("[a-z_-]+", place):
        return []  # GMT+2 least of all: Etc/GMT+2 lies west
    places = {zone: zone.lower().rpartition("/")[2] for zone in zones if "/" in zone}
    if there := sorted(zone for zone in places if places[zone] == place):
        return there
    near = {
        zone: other
        for zone, other in places.items()
        if zone.lower().startswith(area + slash)
        and other[0] == place[0]
        and abs(len(other) - len(place)) <= 1
    }
    closest = get_close_matches(place, near.values(), n=1, cutoff=0.82)
    return sorted(zone for zone in near if near[zone] in closest)
