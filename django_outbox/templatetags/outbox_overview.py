"""The tag that puts the overview on the landing page of the app."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django import template
from django.template import RequestContext

if TYPE_CHECKING:
    from ..admin.overview import Overview

register = template.Library()


@register.simple_tag(takes_context=True)
def outbox_overview(context: RequestContext) -> Overview | None:
    """Return what the user of this request sees of the outbox, None if that is nothing."""
    # Django loads the tags of every app, also on sites that have no admin.
    from ..admin.overview import overview_for

    return overview_for(context.request)
