"""How often the handler of the queue `marked` tells of itself; for both sides of the pipe."""

MARK_EVERY = 1_000
"""Messages."""
