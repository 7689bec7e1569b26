"""What the pages share: rows of the outbox's own database, capped counts, tools, and the log.

Messages and dead letters are shown and acted upon, never edited as forms or deleted as rows: that
would pass by leases and the log, so it is off for superusers too. What can be done to one object
stands above it as buttons; each posts to a view of its own, which looks at the permission again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import unquote
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import BadRequest, PermissionDenied, ValidationError
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import redirect
from django.urls import URLPattern, path, reverse

from .. import names
from ..publishing import default_alias
from .counts import CappedPaginator

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _ModelAdmin = admin.ModelAdmin  # generic in the stubs only


@dataclass(frozen=True, slots=True)
class Tool:
    """A button above an object: `name` is its method and URL, `permission` its codename."""

    name: str
    label: str
    permission: str
    asks: bool = False
    """Whether a GET shows a page first, with a form or a question."""
    is_destructive: bool = False


class OutboxAdmin(_ModelAdmin):
    """The ground of each page."""

    tools: ClassVar[Sequence[Tool]] = ()
    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 0
    change_form_template = "admin/django_outbox/change_form.html"

    class Media:
        css: ClassVar = {"all": ["django_outbox/admin.css"]}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows of the database that messages are written to, never of a replica."""
        rows: QuerySet[Any] = self.model._default_manager.using(default_alias())  # noqa: SLF001
        return rows.order_by(*(self.get_ordering(request) or ()))

    def may(self, request: HttpRequest, codename: str) -> bool:
        """Tell whether the user has this permission of the app."""
        return request.user.has_perm(f"{self.opts.app_label}.{codename}")

    # Tools: what can be done to one object

    def may_use(self, request: HttpRequest, tool: Tool) -> bool:
        """Tell whether the user sees the tool, and may use it."""
        return self.may(request, tool.permission)

    def gone(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Answer for an object that is not there, or not any more."""
        raise Http404(f"There is no {self.opts.verbose_name} {object_id} any more.")

    def get_urls(self) -> list[URLPattern]:
        own = [
            path(
                f"<path:object_id>/{tool.name}/",
                self.admin_site.admin_view(self._tool_view(tool)),
                name=self.url_name(tool.name),
            )
            for tool in self.tools
        ]
        return [*own, *super().get_urls()]

    def url_name(self, name: str) -> str:
        """Return the name of one of this page's URLs, without the namespace."""
        return f"{self.opts.app_label}_{self.opts.model_name}_{name}"

    def url_of(self, name: str, *args: Any) -> str:
        """Return one of this page's URLs: `changelist`, `change`, or a tool."""
        return reverse(f"{self.admin_site.name}:{self.url_name(name)}", args=args)

    def _tool_view(self, tool: Tool) -> Callable[..., HttpResponse]:
        def view(request: HttpRequest, object_id: str) -> HttpResponse:
            if not self.has_view_permission(request) or not self.may_use(request, tool):
                raise PermissionDenied
            if request.method != "POST" and not tool.asks:
                return HttpResponseNotAllowed(["POST"])
            obj = self.get_object(request, unquote(object_id))
            if obj is None:
                return self.gone(request, object_id)
            response: HttpResponse | None = getattr(self, tool.name)(request, obj)
            return response or redirect(self.url_of("changelist"))

        return view

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        allowed = [tool for tool in self.tools if self.may_use(request, tool)]
        links = [(tool, self.url_of(tool.name, object_id)) for tool in allowed]
        return super().change_view(
            request, object_id, form_url, {"tools": links, **(extra_context or {})}
        )

    def is_useful(self, tool: Tool, obj: Any) -> bool:
        """Tell whether the tool could do anything to the object as it is now.

        Only what is offered: what a tool may do is decided where it is done.
        """
        return True

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        obj = context.get("original")
        if obj is not None:
            offered = context.get("tools", ())
            context["tools"] = [link for link in offered if self.is_useful(link[0], obj)]
        return super().render_change_form(request, context, *args, **kwargs)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        for pk in request.POST.getlist(ACTION_CHECKBOX_NAME):
            try:
                self.opts.pk.to_python(pk)
            except ValidationError:
                raise BadRequest(f"What was selected has no such id: {pk[:60]!r}.") from None
        return super().changelist_view(request, extra_context)

    # Filters

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow the filters and nothing else: any other lookup may read the whole table.

        Those of Django's own are not given what no column can hold; ours see to it themselves.
        """
        fields = {f"{one}__exact" for one in self.list_filter if isinstance(one, str)}
        own = {getattr(one, "parameter_name", None) for one in self.list_filter}
        return lookup in own or (lookup in fields and names.flaw_in_text(value) is None)

    # The log

    def log(
        self, request: HttpRequest, what: str, *, obj: Model | None = None, flag: int = CHANGE
    ) -> LogEntry:
        """Write to the admin's log who has done what, to one object or to many."""
        return LogEntry.objects.create(
            user_id=request.user.pk or 0,
            content_type=ContentType.objects.get_for_model(self.model),
            object_id=None if obj is None else str(obj.pk),
            object_repr=(str(self.opts.verbose_name_plural) if obj is None else str(obj))[:200],
            action_flag=flag,
            change_message=what,
        )

    def tell(self, request: HttpRequest, what: str, *, level: int = messages.SUCCESS) -> None:
        """Show the user what has been done; the text is escaped."""
        self.message_user(request, what, level)


class ReadOnlyAdmin(OutboxAdmin):
    """A page whose rows are shown and acted upon, but neither made, edited nor deleted."""

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


def defer_content(queryset: QuerySet[Any]) -> QuerySet[Any]:
    """Leave out of lists what may be large."""
    return queryset.defer("payload", "headers")
