"""Moments of the loop are `time.monotonic()` seconds; this one never comes."""

NEVER = float("inf")
