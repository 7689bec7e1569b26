"""The nemesis: draws faults from a seed, in two lanes at once, and keeps account of them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import get_args

from tests.faults.faults import FAULTS, Fault, Lane, NotDone
from tests.faults.site import Site

PAUSES = (1.0, 4.0)
"""The shortest and the longest time in seconds between two faults of a lane."""


@dataclass(frozen=True)
class Deed:
    """One fault as it was: when in the run, for how long, and what it did."""

    at: float
    seconds: float
    name: str
    what: str
    is_done: bool


def sequence(lane: Lane, seed: int) -> Iterator[tuple[Fault, Random]]:
    """Yield the faults of a lane, each with a chance of its own: the same for the same seed.

    They come in rounds, each with every fault as often as its weight says, in random order.
    """
    chance = Random(f"{seed} {lane}")
    round_ = [fault for fault in FAULTS if fault.lane == lane for _ in range(fault.weight)]
    while True:
        for fault in chance.sample(round_, len(round_)):
            yield fault, Random(chance.getrandbits(64))


class Nemesis:
    """Breaks the site in a thread for each lane, from the start of the block to its end."""

    def __init__(self, site: Site, seed: int) -> None:
        self.deeds: list[Deed] = []
        self.errors: list[str] = []
        self._site = site
        self._began = time.monotonic()
        self._threads = [
            threading.Thread(target=self._haunt, args=(lane, seed)) for lane in get_args(Lane)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let what is broken be made whole, and break nothing more."""
        self._site.calm.set()
        for thread in self._threads:
            thread.join()
        self.deeds.sort(key=lambda deed: deed.at)

    def _haunt(self, lane: Lane, seed: int) -> None:
        pauses = Random(f"{seed} {lane} pauses")
        for fault, chance in sequence(lane, seed):
            if self._site.calm.wait(pauses.uniform(*PAUSES)):
                return
            if fault.can_run(self._site):
                self._do(fault, chance)

    def _do(self, fault: Fault, chance: Random) -> None:
        began = time.monotonic()
        is_done = True
        try:
            what = fault.run(self._site, chance)
        except NotDone as error:
            is_done, what = False, f"not done: {error}"
        except Exception as error:
            # The other lane may have got into its way; that it is made whole is its own business.
            is_done, what = False, f"not done: {type(error).__name__}: {error}".splitlines()[0]
        deed = Deed(began - self._began, time.monotonic() - began, fault.name, what, is_done)
        self.deeds.append(deed)
        sys.stdout.write(f"{deed.at:7.1f} s  {deed.name}: {deed.what}\n")
        sys.stdout.flush()
