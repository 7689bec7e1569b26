"""`manage.py demo --serve`: the site and its worker, on the database that the settings name."""

from __future__ import annotations

import socket
import time

from django.contrib.auth.models import User
from django.core.management import call_command

from example_project.shop.demo.processes import Processes
from example_project.shop.demo.screen import Screen
from example_project.shop.demo.selling import sell_a_few

HOST = "127.0.0.1"
PORT = 8000
LOGIN = PASSWORD = "demo"
ORDERS = 12
PATIENCE = 30.0


def serve(screen: Screen) -> bool:
    """Run until interrupted."""
    call_command("migrate", verbosity=0)
    sell_a_few(ORDERS)
    _create_superuser()
    port = _free_port()
    with Processes() as processes:
        processes.start("outbox_worker", "--no-reload")
        processes.start("runserver", "--noreload", f"{HOST}:{port}", debug=True)
        screen.progress("The site is starting")
        _wait_for_the_site(port, processes)
        screen.title("The shop is open, and its worker works")
        screen.say(f"http://{HOST}:{port}/         place orders, see them travel")
        screen.say(f"http://{HOST}:{port}/admin/   login {LOGIN}, password {PASSWORD}")
        screen.say("Ctrl-C stops both.")
        while True:
            processes.check()
            time.sleep(0.5)


def _create_superuser() -> None:
    if not User.objects.filter(username=LOGIN).exists():
        User.objects.create_superuser(LOGIN, "demo@example.com", PASSWORD)


def _free_port() -> int:
    """Return the usual port, or any free one if that is taken."""
    for port in (PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise AssertionError("the system has no free port")


def _wait_for_the_site(port: int, processes: Processes) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        processes.check()
        try:
            socket.create_connection((HOST, port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
