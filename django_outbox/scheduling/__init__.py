"""Recurring schedules: one leader among all schedulers, and one fire per boundary.

schedule → lead → tick:

- `specs` reads a spec (`fields`, `suggestions`), and `boundaries` says which of its boundaries are
  to be fired; all of these are pure.
- `registration` writes schedules, those declared in code too (`declaring`).
- `leadership` is the lease of the one runner that ticks; `running` is its loop.
- `ticking` fires what is due and advances the boundaries, in one transaction.

What holds at any moment: leadership only spares the others the work. That a boundary is fired once
is the doing of the row locks on the schedules and of the boundary, which is advanced in the
transaction that inserts the message.
"""
