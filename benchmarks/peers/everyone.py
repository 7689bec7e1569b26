"""All that are compared, by name, in the order of the table."""

from __future__ import annotations

from benchmarks.peers.of.faststream import FaststreamOutbox
from benchmarks.peers.of.hand_written import HandWritten
from benchmarks.peers.of.hand_written_here import HandWrittenHere
from benchmarks.peers.of.in_django import DjangoTasksDb, ReliableOutbox
from benchmarks.peers.of.ours import DjangoOutbox
from benchmarks.peers.of.pgqueuer import Pgqueuer
from benchmarks.peers.of.procrastinate import Procrastinate
from benchmarks.peers.peer import Peer

OURS = DjangoOutbox.name
PEERS: dict[str, type[Peer]] = {
    peer.name: peer
    for peer in (
        DjangoOutbox,
        HandWritten,
        HandWrittenHere,
        Pgqueuer,
        FaststreamOutbox,
        ReliableOutbox,
        Procrastinate,
        DjangoTasksDb,
    )
}
