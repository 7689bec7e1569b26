"""The form of a schedule: text that people write → a `Declaration`, checked as the API checks it.

What a form shows of a row is read so that nothing in it can break the page, and a payload that
nobody has touched stays the bytes that it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from django import forms
from django.conf import settings as django_settings
from django.core.exceptions import ValidationError

from .. import codecs, names
from ..drafts import checked_headers, checked_lifetime, checked_max_attempts
from ..errors import OutboxError, PayloadError, PayloadTooLarge
from ..messages import parse_headers
from ..models import Schedule
from ..publishing import default_alias
from ..scheduling.registration import Declaration
from ..scheduling.specs import parse
from .payloads import MOST_SHOWN, pretty_json

if TYPE_CHECKING:
    _ModelForm = forms.ModelForm[Schedule]
else:
    _ModelForm = forms.ModelForm

T = TypeVar("T")

JSON, HEX = "json", "hex"

CATCH_UPS = (
    ("all", "All: fire the oldest 64 of those that were missed, and skip the others"),
    ("latest", "Latest: fire only the newest of those that were missed"),
    ("skip", "Skip: fire none that was missed, and go on with the next"),
)


class Lines(forms.CharField):
    """Text of several lines, which browsers send with line ends of their own."""

    widget = forms.Textarea

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value)
        return text.replace("\r\n", "\n") if isinstance(text, str) else text


class Seen(forms.CharField):
    """What a row held when its form was opened; no change of the row."""

    widget = forms.HiddenInput

    def has_changed(self, initial: Any, data: Any) -> bool:
        return False


class ScheduleForm(_ModelForm):
    """A schedule to add or to edit; once it is valid, `declaration` is what it says."""

    declaration: Declaration | None = None

    name = forms.CharField(
        max_length=names.MAX_LENGTH,
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
        help_text="Names the schedule for good; it cannot be changed later.",
    )
    spec = forms.CharField(
        widget=forms.TextInput(
            attrs={"class": "vTextField", "autocomplete": "off", "spellcheck": "false"}
        ),
        help_text=(
            "“@every 15m” (s, m, h or d), or “@cron 30 7 * * MON-FRI Europe/Berlin”: minute, hour, "
            "day of month, month, day of week, and a zone."
        ),
    )
    queue = forms.CharField(
        widget=forms.TextInput(
            attrs={"class": "vTextField", "autocomplete": "off", "list": "outbox-queues"}
        ),
        help_text="Where the messages go. Those with a handler are suggested.",
    )
    payload = Lines(
        required=False,
        widget=forms.Textarea(
            attrs={"class": "vLargeTextField outbox-payload", "rows": 8, "spellcheck": "false"}
        ),
    )
    payload_is = forms.ChoiceField(
        choices=((JSON, "JSON"), (HEX, "bytes, two hexadecimal digits each")),
        initial=JSON,
        required=False,
        label="Payload is written as",
    )
    headers = Lines(
        required=False,
        widget=forms.Textarea(
            attrs={"class": "vLargeTextField outbox-payload", "rows": 3, "spellcheck": "false"}
        ),
        help_text='A JSON object of strings, such as {"tenant": "acme"}.',
    )
    max_attempts = forms.IntegerField(
        required=False,
        widget=forms.NumberInput(attrs={"class": "vIntegerField", "min": 1}),
        help_text="Empty: as the queue's handler has it.",
    )
    expires_in = forms.DurationField(
        required=False,
        help_text=(
            "Counts from each fire: seconds such as 90, hh:mm:ss, “2 00:00:00” for two days, or "
            "ISO 8601 such as PT15M. Empty: never."
        ),
    )
    catch_up = forms.ChoiceField(
        choices=CATCH_UPS,
        initial="all",
        widget=forms.RadioSelect,
        help_text="What becomes of boundaries that passed while no scheduler was there.",
    )
    enabled = forms.BooleanField(required=False, initial=True)
    seen = Seen(required=False)

    class Meta:
        model = Schedule
        fields: ClassVar = ("name", "spec", "queue", "max_attempts", "catch_up", "enabled")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_new = self.instance.pk is None
        self._default_zone = django_settings.TIME_ZONE
        self._body = codecs.encode(None)[0]
        self._headers = {codecs.CONTENT_TYPE: codecs.JSON}
        if not self._is_new:
            self._show_row(self.instance)
        if "payload" in self.fields:
            self.fields["payload"].help_text = self._payload_help()
        if "spec" in self.fields:
            self.fields["spec"].help_text += f" Without a zone it is {self._default_zone}."

    def _show_row(self, row: Any) -> None:
        self._body, self._headers = row.body, readable_headers(row.headers_text)
        text, kind = payload_text(self._body, self._headers)
        self.initial.update(
            payload=text,
            payload_is=kind,
            headers=_headers_text(self._headers, kind),
            expires_in=duration(row.lifetime),
            seen=_digest(row),
        )

    def _payload_help(self) -> str:
        if len(self._body) > MOST_SHOWN:
            return "It is too large to be edited here, and stays unless another one is written."
        return "Empty means null." if self._is_new else "It stays as it is unless it is changed."

    def clean_name(self) -> str:
        name: str = self._checked(
            names.validate_queue, self.cleaned_data["name"], kind="schedule's name"
        )
        if Schedule.objects.using(default_alias()).filter(name=name).exists():
            raise ValidationError("There is a schedule of this name. Edit that one instead.")
        return name

    def clean_spec(self) -> str:
        spec: str = self.cleaned_data["spec"]
        self._checked(parse, spec, default_zone=self._default_zone)
        return spec

    def clean_queue(self) -> str:
        return self._checked(names.validate_queue, self.cleaned_data["queue"])

    def clean_headers(self) -> dict[str, str]:
        text = self.cleaned_data["headers"]
        headers = _from_json(text) if text else {}
        if not isinstance(headers, dict):
            raise ValidationError("Headers are a JSON object of strings, such as {}.")
        return self._checked(checked_headers, headers)

    def clean_max_attempts(self) -> int | None:
        return self._checked(checked_max_attempts, self.cleaned_data["max_attempts"])

    def clean_expires_in(self) -> timedelta | None:
        lifetime = self.cleaned_data["expires_in"]
        return self._checked(checked_lifetime, lifetime, delay=timedelta(), moment=None)

    def clean_payload_is(self) -> str:
        kind: str = self.cleaned_data["payload_is"] or self.initial.get("payload_is", JSON)
        return kind

    def clean(self) -> dict[str, Any] | None:
        super().clean()
        seen = self.cleaned_data.get("seen")
        if seen and seen != self.initial.get("seen"):
            self.add_error(
                None,
                "Somebody has changed this schedule since you opened it. Open it again, and make "
                "your changes to what it is now.",
            )
        if not self.errors:
            self._declare()
        return None

    def validate_unique(self) -> None:
        """Leave it to `clean_name`, which asks the outbox's own database."""

    @staticmethod
    def _checked(check: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        try:
            return check(*args, **kwargs)
        except (OutboxError, ValueError, TypeError) as error:
            raise ValidationError(str(error)) from error

    def _declare(self) -> None:
        given = self.cleaned_data
        try:
            payload, headers = self._payload_and_headers()
            self.declaration = Declaration.checked(
                given.get("name", self.instance.name),
                given["spec"],
                queue=given["queue"],
                payload=payload,
                headers=headers,
                max_attempts=given["max_attempts"],
                expires_in=given["expires_in"],
                catch_up=given["catch_up"],
                enabled=given["enabled"],
            )
        except ValidationError as error:
            self.add_error("payload", error)
        except (PayloadError, PayloadTooLarge) as error:
            self.add_error("payload", str(error))
        except (OutboxError, ValueError, TypeError) as error:
            is_of_headers = "content-type" in str(error)
            self.add_error("headers" if is_of_headers else None, str(error))

    def _payload_and_headers(self) -> tuple[Any, dict[str, str]]:
        """Return what to declare: bytes for what is kept or written in hex, else what JSON says."""
        headers = self.cleaned_data["headers"]
        if self._is_payload_kept:
            kind = {codecs.CONTENT_TYPE: self._headers.get(codecs.CONTENT_TYPE, codecs.BINARY)}
            return self._body, kind | headers
        text = self.cleaned_data["payload"]
        if self.cleaned_data["payload_is"] == HEX:
            return _from_hex(text), headers
        payload = _from_json(text) if text else None
        if codecs.is_json(headers.get(codecs.CONTENT_TYPE, "")):
            return codecs.encode(payload)[0], headers
        return payload, headers

    @property
    def _is_payload_kept(self) -> bool:
        is_of_same_kind = self.cleaned_data["payload_is"] == self.initial.get("payload_is")
        return not self._is_new and is_of_same_kind and "payload" not in self.changed_data

    def changes(self) -> dict[str, Any]:
        """Return the columns that were changed, with what to write into them.

        The boundary is none of them: it is worked out where the clock is read.
        """
        if self.declaration is None:
            return {}
        draft = self.declaration.draft
        values: dict[str, Any] = {
            "queue": draft.queue,
            "max_attempts": draft.max_attempts,
            "expires_in": draft.expires_in,
            "catch_up": self.declaration.catch_up,
            "enabled": self.declaration.enabled,
        }
        changes = {name: value for name, value in values.items() if name in self.changed_data}
        if draft.body != self._body:
            changes["payload"] = draft.body
        if not self._is_payload_kept or "headers" in self.changed_data:
            changes["headers"] = draft.headers
        return changes

    @property
    def is_to_be_planned(self) -> bool:
        """Whether the spec is another one, or the row's zone is none by which it can be read."""
        if "spec" in self.changed_data:
            return True
        try:
            parse(self.cleaned_data["spec"], default_zone=self.instance.timezone)
        except OutboxError:
            return True
        return False

    def _post_clean(self) -> None:
        super()._post_clean()  # type: ignore[misc]
        if "spec" in self.errors:
            self.instance.spec = ""  # or the page would show when the former one fires
        elif "spec" in self.changed_data:
            self.instance.timezone = self._default_zone


def payload_text(body: bytes, headers: dict[str, str]) -> tuple[str, str]:
    """Return a payload as it is edited, and whether that is JSON or hex; nothing if it is large."""
    kind = headers.get(codecs.CONTENT_TYPE, codecs.BINARY)
    text = pretty_json(body, kind) if codecs.is_json(kind) else None
    if len(body) > MOST_SHOWN:
        return "", HEX if text is None else JSON
    return (body.hex(" "), HEX) if text is None else (text, JSON)


def duration(seconds: float | None) -> timedelta | None:
    """Return seconds as a duration, None for what Python cannot hold."""
    try:
        return None if seconds is None else timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        return None


def readable_headers(text: str) -> dict[str, str]:
    """Return stored headers; what was written by hand and is no object of strings, as none."""
    try:
        return parse_headers(text)
    except OutboxError:
        return {}


def _headers_text(headers: dict[str, str], kind: str) -> str:
    """Return headers as they are edited: without the content type that the payload implies."""
    implied = codecs.JSON if kind == JSON else codecs.BINARY
    own = {
        name: value
        for name, value in headers.items()
        if (name, value) != (codecs.CONTENT_TYPE, implied)
    }
    return json.dumps(own, indent=2, ensure_ascii=False) if own else ""


def _digest(row: Any) -> str:
    """Return what stands for all that can be edited of a row."""
    columns = (
        row.spec,
        row.timezone,
        row.queue,
        row.body,
        row.headers_text,
        row.max_attempts,
        row.lifetime,
        row.catch_up,
        row.enabled,
    )
    return sha256(repr(columns).encode()).hexdigest()


def _from_json(text: str) -> Any:
    try:
        return codecs.decode(text.encode(), codecs.JSON)
    except OutboxError as error:
        raise ValidationError(str(error).replace("The payload is", "This is")) from error


def _from_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise ValidationError(
            "Bytes are written as two hexadecimal digits each, such as 00 ff 7a."
        ) from error
