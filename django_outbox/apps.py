"""The app, which brings the system checks and finds the handlers of all apps."""

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class DjangoOutboxConfig(AppConfig):
    name = "django_outbox"
    verbose_name = "Outbox"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks, database_checks  # noqa: F401

        autodiscover_modules("outbox_handlers")
