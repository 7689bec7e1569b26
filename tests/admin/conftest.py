"""Users of the admin, and their browsers without a screen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from tests.contract.conftest import make_letter, make_letters  # noqa: F401 - fixtures

Login = Callable[..., Client]


@pytest.fixture
def login(db: None) -> Login:
    """Log a user in who has these permissions of `django_outbox` and no others."""

    def login(*codenames: str, is_superuser: bool = False) -> Client:
        user = User.objects.create_user(
            f"user{User.objects.count()}", is_staff=True, is_superuser=is_superuser
        )
        found = Permission.objects.filter(
            content_type__app_label="django_outbox", codename__in=codenames
        )
        assert len(found) == len(codenames), f"{codenames} are not all permissions"
        user.user_permissions.set(found)
        client = Client()
        client.force_login(user)
        return client

    return login


@pytest.fixture
def superuser(login: Login) -> Client:
    return login(is_superuser=True)
