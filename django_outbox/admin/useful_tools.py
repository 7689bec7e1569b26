"""Tools that would do nothing to an object as it is do not stand above it."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse

from .base import OutboxAdmin, Tool


class UsefulTools(OutboxAdmin):
    """A page whose tools depend on what its object is like.

    Only what is offered: what a tool may do is decided where it is done.
    """

    def is_useful(self, tool: Tool, obj: Any) -> bool:
        """Tell whether the tool could do anything to the object as it is now."""
        return True

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        obj = context.get("original")
        if obj is not None:
            offered = context.get("tools", ())
            context["tools"] = [link for link in offered if self.is_useful(link[0], obj)]
        return super().render_change_form(request, context, *args, **kwargs)
