"""Start the embedded server with the first connection, so that what needs none starts none."""

from __future__ import annotations

from typing import Any

from django.db.backends.postgresql import base
from psycopg.conninfo import conninfo_to_dict

from example_project.embedded import start_shared


class DatabaseWrapper(base.DatabaseWrapper):
    """Connect to the embedded server, wherever it is."""

    def get_connection_params(self) -> dict[str, Any]:
        server = conninfo_to_dict(start_shared())
        self.settings_dict.update(HOST=server["host"], PORT=server["port"], USER=server["user"])
        return super().get_connection_params()
