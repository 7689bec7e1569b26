"""An app for scheduler processes whose leaders a test does not want to outwait for ten seconds."""

from __future__ import annotations

from django.apps import AppConfig

TTL = 3.0


class ShortLeaseConfig(AppConfig):
    name = "tests.shortlease"

    def ready(self) -> None:
        from django_outbox.scheduling import leadership, running, transactions

        leadership.TTL = TTL
        for module, name, seconds in ((transactions, "TTL", TTL), (running, "RENEW_EVERY", 1.0)):
            assert hasattr(module, name)
            setattr(module, name, seconds)
