"""What operators type: how fast to replay, and another payload."""

from __future__ import annotations

import binascii
import json
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib.admin.helpers import ActionForm
from django.core.exceptions import ImproperlyConfigured, ValidationError

from .. import codecs, handlers
from ..conf import settings
from ..errors import InvalidPayload, PayloadError
from ..models import DeadLetter
from ..querysets import SLOWEST
from .payloads import MOST_SHOWN, kind_of, pretty_json

DEFAULT_PACE = 10
_HEX_ROW = 32
_MOST_OF_A_FLAW = 200  # characters at either end


class LetterActionForm(ActionForm):
    """The action, and beside it how many a second `Replay slowly` makes due.

    What stands in the field is looked at only by the action that needs it; see `Pace`.
    """

    per_second = forms.CharField(
        label="Per second:",
        required=False,
        initial=DEFAULT_PACE,
        widget=forms.NumberInput(
            attrs={"min": SLOWEST, "step": "any", "class": "outbox-pace", "autocomplete": "off"}
        ),
    )


class Pace(forms.Form):
    per_second = forms.FloatField(
        min_value=SLOWEST,
        error_messages={
            "required": "“Replay slowly” needs to know how many a second, such as 10.",
            "invalid": "“Per second” must be a number, such as 10 or 0.5.",
            "min_value": f"“Per second” must be {SLOWEST} or more.",
        },
    )


class PayloadForm(forms.Form):
    """A payload as text: JSON, text as it is, or bytes as hexadecimal digits."""

    payload = forms.CharField(
        strip=False,
        required=False,
        widget=forms.Textarea(
            attrs={"rows": 20, "spellcheck": "false", "class": "vLargeTextField outbox-payload"}
        ),
    )

    def __init__(self, letter: DeadLetter, data: Any = None) -> None:
        self.kind = kind_of(letter.headers)
        self.queue = letter.queue
        self.notation = _notation(bytes(letter.payload), self.kind)
        super().__init__(data, initial={"payload": self.notation.text})
        self.fields["payload"].help_text = self.notation.help_text

    def clean_payload(self) -> bytes:
        """Return the bytes to store."""
        body = self.notation.bytes_of(self.cleaned_data["payload"])
        if codecs.is_json(self.kind):
            body = _checked_json(body, self.kind)
        if len(body) > settings.max_payload_bytes:
            raise ValidationError(
                f"The payload has {len(body):,} bytes, more than the "
                f"{settings.max_payload_bytes:,} that OUTBOX['MAX_PAYLOAD_BYTES'] allows."
            )
        self._check_type(body)
        return body

    def _check_type(self, body: bytes) -> None:
        """Have the queue's handler read it, if this process knows one."""
        handler = handlers.registry.get(self.queue)
        if handler is None:
            return
        try:
            handler.decode(body, self.kind)
        except (InvalidPayload, ImproperlyConfigured) as error:
            raise ValidationError(f"{handler.name} could not read it. {error}") from error


@dataclass(frozen=True, slots=True)
class _Notation:
    """How bytes are written in the form; `newline` is None where they are hexadecimal digits."""

    text: str
    newline: str | None
    help_text: str

    def bytes_of(self, text: str) -> bytes:
        # Browsers send every line break as CR LF.
        lines = text.replace("\r\n", "\n")
        if self.newline is not None:
            return _utf8(lines.replace("\n", self.newline))
        try:
            return binascii.unhexlify("".join(lines.split()).encode("ascii", "replace"))
        except binascii.Error as error:
            raise ValidationError(
                "Bytes are written as hexadecimal digits, two for each byte, such as 00 ff; "
                f"this is not: {str(error).lower()}."
            ) from error


def _notation(body: bytes, kind: str) -> _Notation:
    if codecs.is_json(kind) and len(body) <= MOST_SHOWN:
        pretty = pretty_json(body, kind)
        if pretty is not None and _is_same_json(body, pretty.encode()):
            return _Notation(pretty, "\n", f"JSON ({kind})")
    text, newline = _as_text(body)
    if newline is not None and (codecs.is_json(kind) or kind.startswith("text/")):
        return _Notation(text, newline, f"Text ({kind})")
    digits = body.hex()
    rows = (digits[start : start + 2 * _HEX_ROW] for start in range(0, len(digits), 2 * _HEX_ROW))
    return _Notation("\n".join(rows), None, f"Bytes as hexadecimal digits ({kind})")


def _as_text(body: bytes) -> tuple[str, str | None]:
    """Return the text and its line break; None if a form would not give it back as it was."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return "", None
    unix = text.replace("\r\n", "\n")
    if "\x00" in text or "\r" in unix:
        return "", None
    if "\r\n" not in text:
        return text, "\n"
    return (text, "\r\n") if unix.replace("\n", "\r\n") == text else ("", None)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValidationError("The text has a lone surrogate, which UTF-8 cannot hold.") from error


def _checked_json(body: bytes, kind: str) -> bytes:
    """Return JSON as `publish` would store it, or as it is typed if that would change it."""
    try:
        encoded, _ = codecs.encode(codecs.decode(body, kind))
    except (InvalidPayload, PayloadError) as error:
        raise ValidationError(_shortened(str(error))) from error
    return encoded if _is_same_json(body, encoded) else body


def _shortened(flaw: str) -> str:
    """Leave out the middle of a path that goes hundreds of levels deep."""
    if len(flaw) <= 2 * _MOST_OF_A_FLAW:
        return flaw
    return f"{flaw[:_MOST_OF_A_FLAW]} … {flaw[-_MOST_OF_A_FLAW:]}"


def _is_same_json(one: bytes, other: bytes) -> bool:
    """Tell whether not even a digit differs: a float keeps 17 of those of an amount of money."""
    try:
        return bool(_exact(one) == _exact(other))
    except RecursionError:
        return False


def _exact(body: bytes) -> Any:
    return json.loads(body, parse_float=str, object_pairs_hook=list)
