"""The fault suite: a site of real processes, a nemesis that breaks it, and a ledger to judge by.

`tox run -e faults` runs it. The site is a PostgreSQL server, publishers, workers and schedulers,
all of them processes of their own (`site`, `fleet`, `publisher`, `outbox_handlers`), which reach
the server through a TCP proxy (`proxy`). The nemesis draws faults from a seed (`nemesis`,
`faults`). What is published and delivered is written into tables beside the outbox (`ledger`), and
at the end each promise is one check on them (`checks`). As a Django app it brings the handlers.
"""
