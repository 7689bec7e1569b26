"""Tests of what nobody may bring the outbox to do."""
