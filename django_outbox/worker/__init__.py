"""The worker: one loop that talks to the queue tables, and threads that run the handlers.

claim → dispatch → settle:

- `loop` turns: it settles, renews, claims and sleeps. `claiming` says when, `pacing` how much and
  `window` from where; `claimer` does it, whatever a row is like; `leases` keeps what is in hand.
- `pool` has the threads. Each takes a `delivery` and makes an attempt (`attempts`), alone or with
  others in one transaction (`batches`), and runs it to one outcome (`dispatch`), on connections
  that `sessions` keeps fit; `failures` makes exceptions storable.
- `settling` writes the outcomes in batches, and `reporting` tells of them.
- `database` is the loop's connection, `watchdog` gives up what does not answer, `listener` and
  `wakeup` end the sleep.

What holds at any moment:

- only the loop's own connection claims, renews and settles; handlers that settle in their own
  transaction do so on their thread's connection, matching the lease token all the same (`inline`
  delivers without a worker, and does all of it on its caller's);
- a message in hand is waiting, running or ended, and its lease is renewed in each of the three;
- an outcome that could not be written stays in hand until it is written or its lease is lost.
"""
