"""The worker: one loop that talks to the queue tables, and threads that run the handlers.

claim → dispatch → settle. The loop (`loop`) claims into free slots (`claiming`, `pacing`), threads
(`pool`) run each delivery to one `Outcome` (`dispatch`), and the loop writes the outcomes in
batches (`settling`), renews leases, and sleeps until something wakes it (`wakeup`).

What holds at any moment:

- only the loop's own connection claims, renews and settles; handlers that settle in their own
  transaction do so on their thread's connection, matching the lease token all the same;
- a message in hand is waiting, running or ended, and its lease is renewed in each of the three;
- an outcome that could not be written stays in hand until it is written or its lease is lost.
"""
