"""A site that needs no more of the outbox than its first release had."""
