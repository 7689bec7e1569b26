"""The task of django-tasks-db; on Django before 6.0 tasks are a package of their own."""

from __future__ import annotations

from benchmarks.peers import marks

try:
    from django.tasks import task as as_task
except ImportError:
    from django_tasks import task as as_task


@as_task()
def task(text: str) -> None:
    marks.handled()
