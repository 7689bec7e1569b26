"""Handlers: the functions that messages are delivered to, and the registry of them by queue."""

from __future__ import annotations

import asyncio
import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured

from . import codecs, names, retries
from .errors import OutboxError
from .messages import Message, OutboxResponse, Seconds

Function = TypeVar("Function", bound=Callable[..., Any])

MAX_DELIVERIES = 20
LEASE_TTL = 60.0
SHORTEST_LEASE = 0.1
"""Seconds; a lease shorter than a few round trips is lost before it can be renewed."""


class Retry(OutboxError):
    """Raised by a handler to have the message again after `delay` (a timedelta or seconds).

    It counts as a failed attempt, so `max_attempts` still ends it.
    """

    def __init__(self, *args: object, delay: Seconds) -> None:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        self.delay = retries.checked_delay(seconds, source="Retry(delay=…)")
        super().__init__(*(args or (f"Retry in {self.delay:g} s",)))


class Reject(OutboxError):
    """Raised by a handler to bury the message at once, with a word on why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A function with the queues it serves and how its messages are treated.

    `lease_ttl` and `timeout` are seconds; without `timeout` a message may take as long as it does.
    """

    function: Callable[..., Any]
    queues: tuple[str, ...]
    retry: retries.RetryStrategy = retries.DEFAULT
    max_deliveries: int = MAX_DELIVERIES
    own_attempts_win: bool = False
    atomic: bool = False
    atomic_batch: int = 1
    lease_ttl: float = LEASE_TTL
    timeout: float | None = None
    decode: Callable[[bytes, str], Any] = field(default=codecs.decode, repr=False)

    @property
    def name(self) -> str:
        """The handler's dotted name, for people."""
        return name_of(self.function)

    def most_deliveries(self, max_attempts: int | None) -> int:
        """Return how often a message with this `max_attempts` of its own may be delivered."""
        own = max_attempts if self.own_attempts_win else None
        return max(self.max_deliveries, own or 0)

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function, which a timeout can cancel."""
        function = inspect.unwrap(self.function)
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an instance's, which may be async
        )

    def __call__(self, message: Message[Any]) -> list[OutboxResponse]:
        """Run the function, a coroutine too, and return what it wants published."""
        result = self.function(message)
        if result is None:
            return []
        if inspect.isawaitable(result):
            result = async_to_sync(_await_within)(result, self.timeout)
        return _responses(result)


async def _await_within(awaitable: Awaitable[Any], timeout: float | None) -> Any:
    try:
        async with asyncio.timeout(timeout) as limit:
            return await awaitable
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimeoutError(f"The handler took longer than its timeout of {timeout:g} s") from None


def _responses(result: Any) -> list[OutboxResponse]:
    """Pick the responses out of what a handler returned; any other value means nothing."""
    if isinstance(result, OutboxResponse):
        return [result]
    if isinstance(result, list | tuple) and all(isinstance(r, OutboxResponse) for r in result):
        return list(result)
    if isinstance(result, Iterator) or _holds_response(result):
        raise TypeError(
            "A handler returns an OutboxResponse or a list of them, and nothing else beside or "
            f"around them; this one returned a {type(result).__name__}."
        )
    return []


def _holds_response(value: Any) -> bool:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple | set | frozenset):
        return isinstance(value, OutboxResponse)
    return any(map(_holds_response, value))


class Registry:
    """The handlers by queue; at most one for each."""

    def __init__(self) -> None:
        self._by_queue: dict[str, Handler] = {}

    def add(self, handler: Handler) -> None:
        """Register the handler for all its queues, or raise `ImproperlyConfigured` for none."""
        for queue in handler.queues:
            if (other := self._by_queue.get(queue)) is not None:
                raise ImproperlyConfigured(
                    f"The queue {queue!r} has two handlers, {other.name} and {handler.name}. "
                    "A queue has one; let one handler do both, or publish to two queues."
                )
        self._by_queue.update(dict.fromkeys(handler.queues, handler))

    def get(self, queue: str) -> Handler | None:
        """Return the queue's handler, or None."""
        return self._by_queue.get(queue)

    def handlers(self) -> list[Handler]:
        """Return each handler once, however many queues it serves."""
        return list({id(handler): handler for handler in self._by_queue.values()}.values())

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_queue)

    def __len__(self) -> int:
        return len(self._by_queue)


registry = Registry()


def handler(
    *queues: str,
    retry: retries.RetryStrategy = retries.DEFAULT,
    max_deliveries: int = MAX_DELIVERIES,
    atomic: bool = False,
    atomic_batch: int | None = None,
    lease_ttl: float = LEASE_TTL,
    timeout: float | None = None,
) -> Callable[[Function], Function]:
    """Register the decorated function as the handler of these queues.

    `retry` says when to try again after a failure; `max_deliveries` ends what is delivered again
    and again without ever ending, as after a crash. With `atomic` the function runs in a
    transaction that also removes the message, so its database effects happen exactly once; with
    `atomic_batch` up to so many messages share a transaction, each in a savepoint of its own. The
    lease lasts `lease_ttl` seconds and is renewed while the function runs, until `timeout`
    seconds have passed; an async function is cancelled then.

    Raises `ImproperlyConfigured` when a queue has a handler already.
    """
    _check_options(
        queues,
        retry=retry,
        max_deliveries=max_deliveries,
        atomic=atomic,
        atomic_batch=atomic_batch,
        lease_ttl=lease_ttl,
        timeout=timeout,
    )

    def register(function: Function) -> Function:
        _check_function(function)
        registry.add(
            Handler(
                function=function,
                queues=queues,
                retry=retry,
                max_deliveries=max_deliveries,
                atomic=atomic,
                atomic_batch=atomic_batch or 1,
                lease_ttl=float(lease_ttl),
                timeout=timeout,
                decode=_decoder_for(function),
            )
        )
        return function

    return register


def _check_options(
    queues: tuple[str, ...],
    *,
    retry: object,
    max_deliveries: object,
    atomic: object,
    atomic_batch: object,
    lease_ttl: object,
    timeout: object,
) -> None:
    if not queues or callable(queues[0]):
        raise ImproperlyConfigured(
            "Name the queue: @outbox.handler('orders'), or several: "
            "@outbox.handler('orders', 'refunds')."
        )
    for queue in queues:
        names.validate_queue(queue)
    if isinstance(retry, type) or not isinstance(retry, retries.RetryStrategy):
        raise ImproperlyConfigured(
            "retry must be a strategy such as outbox.ConstantRetry(5), an object with "
            f"next_delay(); it is {retry!r}."
        )
    _check_count("max_deliveries", max_deliveries)
    if not isinstance(atomic, bool):
        raise ImproperlyConfigured(f"atomic must be True or False; it is {atomic!r}.")
    if atomic_batch is not None:
        _check_count("atomic_batch", atomic_batch)
        if not atomic:
            raise ImproperlyConfigured(
                "atomic_batch says how many messages share a transaction, so it needs atomic=True."
            )
    _check_seconds("lease_ttl", lease_ttl, least=SHORTEST_LEASE)
    if timeout is not None:
        _check_seconds("timeout", timeout)


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ImproperlyConfigured(f"{name} must be a positive whole number; it is {value!r}.")


def _check_seconds(name: str, value: object, *, least: float = 0.001) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= retries.FOREVER:  # type: ignore[operator]
        raise ImproperlyConfigured(
            f"{name} must be a number of seconds, {least:g} at the least; it is {value!r}."
        )


def _check_function(function: Callable[..., Any]) -> None:
    if not callable(function):
        raise ImproperlyConfigured(f"A handler must be callable; {function!r} is not.")
    if inspect.isclass(function):
        raise ImproperlyConfigured(
            f"{name_of(function)} is a class; calling it would only make an instance. Register a "
            "function, or an instance whose __call__ takes the message."
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ImproperlyConfigured(
            f"{name_of(function)} is a generator, so calling it would run nothing. "
            "Return a list of OutboxResponse instead."
        )
    try:
        inspect.signature(function).bind(object())
    except TypeError as error:
        raise ImproperlyConfigured(
            f"{name_of(function)} cannot be called with a message as its only argument: {error}."
        ) from error
    except ValueError:
        pass  # a builtin, whose signature nobody knows


def _decoder_for(function: Callable[..., Any]) -> Callable[[bytes, str], Any]:
    """Return how to decode the payload for a function whose parameter says `Message[T]`."""
    try:
        target = _payload_type(function)
    except _UNRESOLVED:
        # T is defined further down in its module, or only for the type checker. The system check
        # tries again when everything is imported.
        return LateDecoder(function)
    return _decoder_to(target, function)


_UNRESOLVED = (NameError, AttributeError, TypeError)


class LateDecoder:
    """A decoder to a type that cannot be resolved yet."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @functools.cached_property
    def decode(self) -> Callable[[bytes, str], Any]:
        """The decoder itself; raises `ImproperlyConfigured` if the type cannot be resolved."""
        try:
            return _decoder_to(_payload_type(self._function), self._function)
        except _UNRESOLVED as error:
            raise ImproperlyConfigured(
                f"The type of {name_of(self._function)}'s message cannot be resolved: {error}. "
                "Import it at run time, not only under TYPE_CHECKING."
            ) from error

    def __call__(self, body: bytes, content_type: str) -> Any:
        return self.decode(body, content_type)


def _payload_type(function: Callable[..., Any]) -> Any:
    """Return T where the function's parameter is annotated `Message[T]`, else `Any`."""
    target = function if inspect.isroutine(function) else type(function).__call__
    if isinstance(function, functools.partial):
        target = function.func
    hints = typing.get_type_hints(inspect.unwrap(target))
    hints.pop("return", None)
    for hint in hints.values():
        if typing.get_origin(hint) is Message:
            return typing.get_args(hint)[0]
    return Any


def _decoder_to(target: Any, function: Callable[..., Any]) -> Callable[[bytes, str], Any]:
    if target in (Any, object) or isinstance(target, TypeVar):
        return codecs.decode
    if target is bytes:
        return lambda body, content_type: body
    try:
        from .typed_payloads import decoder
    except ImportError as error:
        raise ImproperlyConfigured(
            f"{name_of(function)} takes Message[{getattr(target, '__name__', target)}], which "
            "pydantic decodes: pip install 'django-outbox-pg[pydantic]', or annotate it as Message."
        ) from error
    try:
        return decoder(target)
    except ImproperlyConfigured as error:
        raise ImproperlyConfigured(f"The handler {name_of(function)}: {error}") from error


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's dotted name, for people."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None) or repr(function)
    return f"{module}.{name}" if module else name
