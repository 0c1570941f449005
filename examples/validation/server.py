"""A server with a known amount of work: one process, kept connections, a fixed loop for each request.

python3 server.py PORT TURNS LEAK

Each request runs a loop of TURNS turns and keeps LEAK bytes for ever, the headers of Python's objects
included.
"""

import selectors
import socket
import sys

REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n"
# The bytes that Python 3 (64 bits) adds to a bytes object, and those of its list for each.
OVERHEAD = sys.getsizeof(b"") + 8


def work(turns):
    for _ in range(turns):
        pass


def main():
    port, turns, leak = (int(argument) for argument in sys.argv[1:])
    filling = b"x" * max(leak - OVERHEAD, 0)
    kept = []
    # All reads use one buffer, because a large buffer for each read would fragment the memory.
    buffer = bytearray(65536)
    selector = selectors.DefaultSelector()
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(connection, selectors.EVENT_READ, bytearray())
                continue
            connection, unread = key.fileobj, key.data
            try:
                received = connection.recv_into(buffer)
            except ConnectionError:
                received = 0
            if received == 0:
                selector.unregister(connection)
                connection.close()
                continue
            unread += buffer[:received]
            while (end := unread.find(b"\r\n\r\n")) >= 0:
                del unread[: end + 4]
                work(turns)
                if leak:
                    # bytes(filling) would return the same object again.
                    kept.append(bytes(memoryview(filling)))
                connection.sendall(REPLY)


main()
