"""Compare django_outbox with its peers: `python -m benchmarks.peers [peer ...]`.

All run on one PostgreSQL, each in a database of its own, one after the other, round by round.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import psycopg

from benchmarks.peers import database, report
from benchmarks.peers.everyone import PEERS
from benchmarks.peers.measuring import Measurer, Stuck
from benchmarks.peers.peer import Peer
from benchmarks.peers.report import Figures


def main() -> int:
    options = arguments()
    unknown = [name for name in options.peers if name not in PEERS]
    if unknown:
        return refuse(f"No peer {unknown[0]!r}. There are: {', '.join(PEERS)}.")
    try:
        with database.server(options.server) as url:
            figures = measured(url, options)
    except psycopg.OperationalError as error:
        return refuse(f"The server cannot be reached: {str(error).splitlines()[0]}")
    print(report.markdown(figures) if options.markdown else report.plain(figures))
    if options.json:
        options.json.write_text(json.dumps(report.as_json(figures), indent=2) + "\n")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description="The same work through django_outbox and its peers, side by side.",
    )
    parser.add_argument("peers", nargs="*", metavar="peer", help="only these (default: all)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--messages", type=int, default=20_000, metavar="N")
    parser.add_argument("--samples", type=int, default=300, metavar="N", help="of the latency")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, too")
    parser.add_argument("--markdown", action="store_true", help="print the tables of the docs")
    parser.add_argument("--server", metavar="URL", help="measure there, in databases of its own")
    return parser.parse_args()


def refuse(message: str) -> int:
    """Say what is wrong in one line, and return the exit status."""
    print(message, file=sys.stderr)
    return 2


def measured(url: str, options: argparse.Namespace) -> Figures:
    """Measure all that are wanted and installed, round by round."""
    figures = Figures(server=database.version(url), rounds=options.rounds)
    wanted = [PEERS[name] for name in options.peers or PEERS]
    with ExitStack() as stack:
        measurers = [prepared(stack, url, peer) for peer in figures.installed(wanted)]
        for _ in range(options.rounds):
            consume(measurers, options.messages, figures)
            publish(measurers, options.messages, figures)
        for measurer in measurers:
            if measurer.peer.listener is not None and options.samples:
                try:
                    figures.delays[measurer.peer.name] = measurer.latency(options.samples)
                except Stuck as error:
                    figures.failed.append(str(error))
    return figures


def prepared(stack: ExitStack, url: str, peer: type[Peer]) -> Measurer:
    """Make the peer's database and its tables."""
    made = stack.enter_context(database.new_database(url, peer.name))
    measurer = Measurer(peer, made)
    stack.callback(measurer.close)
    return measurer


def consume(measurers: Iterable[Measurer], messages: int, figures: Figures) -> None:
    """Let each consumer of each peer work once."""
    for measurer in measurers:
        for consumer in measurer.peer.consumers:
            count = messages // 4 if consumer.slow else messages
            key = (measurer.peer.name, consumer.options, count)
            try:
                figures.add(figures.consumed, key, measurer.consuming(consumer, count))
            except Stuck as error:
                figures.failed.append(str(error))


def publish(measurers: Iterable[Measurer], messages: int, figures: Figures) -> None:
    """Let each peer publish once in each of its ways."""
    for measurer in measurers:
        for way in measurer.peer.ways:
            count = report.published(way, messages)
            try:
                figures.add(
                    figures.published, (measurer.peer.name, way), measurer.publishing(way, count)
                )
            except Stuck as error:
                figures.failed.append(str(error))


if __name__ == "__main__":
    sys.exit(main())
