"""Ports for servers that cannot choose one themselves."""

import contextlib
import random
import socket


def free_ports(count):
    """Below those that the system gives to connections, one of which could take it before it is used."""
    found = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            port = random.randrange(10_000, 30_000)
            with contextlib.suppress(OSError):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
                found.append(port)
    return found
