#!/usr/bin/python3
"""A server that behaves as Paella does: each connection carries one request and is closed without
`Connection: close`, the body is read before the answer, and `Vary` ends in a space.

    python3 server.py PORT      # until SIGTERM; then it prints the time of each of its nine steps, as JSON

Each connection has its own thread, as in Paella.
"""

import json
import signal
import socket
import sys
import threading
import time

STEPS = ["buffer", "header", "path", "query", "mime", "cookies", "handler", "write", "clean up"]
LARGEST_HEAD = 65536
LARGEST_BODY = 1 << 20

totals = [0.0] * len(STEPS)
served = 0
lock = threading.Lock()


def read_head(stream):
    """Returns the lines of a head without their line ends."""
    lines, size = [], 0
    while True:
        line = stream.readline(LARGEST_HEAD)
        size += len(line)
        if size > LARGEST_HEAD or not line.endswith(b"\n"):
            raise ValueError("not a head")
        if line in (b"\r\n", b"\n"):
            return lines
        lines.append(line.rstrip(b"\r\n"))


def serve(connection):
    global served
    clock = [time.perf_counter()]
    step = lambda: clock.append(time.perf_counter())
    with connection, connection.makefile("rwb") as stream:
        step()
        lines = read_head(stream)
        method, target, _ = lines[0].split(b" ", 2)
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip()
        step()
        path, _, query = target.partition(b"?")
        step()
        pairs = [piece.split(b"=", 1) for piece in query.split(b"&") if piece]
        step()
        length = int(headers.get(b"content-length", 0))
        if not 0 <= length <= LARGEST_BODY:
            raise ValueError("too long a body")
        body = stream.read(length)
        step()
        cookies = headers.get(b"cookie", b"").split(b";")
        step()
        page = b"<p>%s %s %d %d %d</p>\n" % (method, path, len(pairs), len(body), len(cookies))
        step()
        stream.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nVary: Accept-Encoding \r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(page), page)
        )
        stream.flush()
        step()
        connection.shutdown(socket.SHUT_RDWR)
    step()
    with lock:
        served += 1
        for index in range(len(STEPS)):
            totals[index] += clock[index + 1] - clock[index]


def answer(connection):
    try:
        serve(connection)
    except (OSError, ValueError):
        connection.close()


def report(*_):
    with lock:
        count = max(served, 1)
        steps = {name: round(total / count * 1e6, 1) for name, total in zip(STEPS, totals)}
        print(json.dumps({"requests": served, "us": steps}), flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, report)
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=1024)
while True:
    taken, _ = listener.accept()
    threading.Thread(target=answer, args=(taken,), daemon=True).start()
