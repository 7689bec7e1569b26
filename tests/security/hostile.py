"""Names that would do harm where somebody took them for more than text."""

from __future__ import annotations

HOSTILE = {
    "sql": "'; DROP TABLE django_outbox_message; --",
    "quotes": "a'b\"c`d$$e\\f",
    "parameters": "%s %(queue)s %% {0} {queue}",
    "a path": "../../../../etc/passwd",
    "an import": "os.system",
    "markup": "</td><script>alert(1)</script>\"><img src=x onerror='alert(2)'>",
    "a template": "{{ 7|add:7 }}{% debug %}{# #}",
    "a log line": "a\r\n2026-12-01 ERROR forged",
    "a terminal's": "\x1b[2J\x1b]0;owned\x07\x9b31m",
    "from right to left": "\u202egnp.exe",
    "a query": "a/b?c=d&e#f;g=%2e%2e%00",
    "a pattern": "*.?[a-z]%_",
    "blank": " ",
    "long": "😀" * 255,
}
"""By what it is meant for; each can name a queue, a timer and a schedule."""
