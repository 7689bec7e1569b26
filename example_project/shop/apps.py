"""The app's configuration."""

from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """A small shop whose orders travel through the outbox."""

    name = "example_project.shop"
