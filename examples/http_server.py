"""Parts of servers with known faults, and of the scripts that start them.

The examples `load-generators` and `validation` use this module.
"""

import contextlib
import selectors
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field


@dataclass(eq=False)
class Client:
    """A connection of a client, and the number of its requests so far."""

    socket: socket.socket
    unread: bytearray = field(default_factory=bytearray)
    requests: int = 0
    # True if the server has closed its side of the connection.
    is_shut: bool = False


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as chosen:
        return chosen.getsockname()[1]


def wait_for(port, process):
    """Waits until the server accepts connections at the port."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"did not start: {' '.join(process.args)}")
            time.sleep(0.01)


@contextlib.contextmanager
def running(program, *arguments):
    """Runs a server in Python, which gets a port as its first argument. Yields its URL."""
    port = free_port()
    process = subprocess.Popen([sys.executable, program, str(port), *map(str, arguments)])
    try:
        wait_for(port, process)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.kill()
        process.wait()


def targets(unread):
    """Yields the target of each complete request, and removes the request."""
    while (end := unread.find(b"\r\n\r\n")) >= 0:
        head = bytes(unread[:end])
        length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
        whole = end + 4 + int(length or 0)
        if len(unread) < whole:
            return
        del unread[:whole]
        yield head.split(b" ")[1]


def serve(port, answer):
    """Calls `answer` with the client and the target of each request, until it returns False to close the connection."""
    selector = selectors.DefaultSelector()
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                accepted, _ = listener.accept()
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(accepted, selectors.EVENT_READ, Client(accepted))
            elif not read(key.data, answer):
                selector.unregister(key.fileobj)
                key.fileobj.close()


def read(client, answer):
    """Answers the requests that have arrived. Returns False if the connection is over."""
    try:
        received = client.socket.recv(65536)
        client.unread += received
        return bool(received) and all(answer(client, target) for target in targets(client.unread))
    except OSError:
        return False
