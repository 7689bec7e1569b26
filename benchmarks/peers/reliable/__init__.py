"""The app whose handler django-reliable-outbox finds by itself."""
