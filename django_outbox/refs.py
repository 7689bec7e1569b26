"""Which model object a message is about, as text: `shop.order:42`.

Text and no foreign key: it is written without a query, and outlives the object. A proxy model is
told by the model it stands for.
"""

from __future__ import annotations

from django.db import models

from . import names

MAX_LENGTH = 512


def ref_to(obj: models.Model) -> str:
    """Return the reference to a saved object; raise `TypeError` or `ValueError` for another."""
    if not isinstance(obj, models.Model):
        raise TypeError(f"ref must be a saved model object; it is of type {type(obj).__name__}.")
    model = type(obj)._meta.concrete_model or type(obj)  # noqa: SLF001 - Django's documented name
    label = model._meta.label_lower  # noqa: SLF001
    if obj.pk is None:
        raise ValueError(f"ref must be a saved model object; this {label} has no primary key yet.")
    ref = f"{label}:{obj.pk}"
    if len(ref) > MAX_LENGTH:
        raise ValueError(
            f"The ref {ref[:60]!r}… has {len(ref)} characters, more than {MAX_LENGTH}."
        )
    if flaw := names.flaw_in_text(ref):
        raise ValueError(f"The ref {ref!r} {flaw}.")
    return ref
