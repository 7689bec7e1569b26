"""A business row, to be written together with a message."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """Somebody bought something."""

    name = models.CharField(max_length=100)
    amount = models.DecimalField(max_digits=10, decimal_places=2, default=0)

    def __str__(self) -> str:
        return self.name
