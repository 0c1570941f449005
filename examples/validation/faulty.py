"""A server with a known fault: one process, kept connections.

python3 faulty.py PORT FAULT [NUMBER]

Faults:
  none          every request gets its reply
  closes N      reads the Nth request of each connection and closes the connection without a reply
  lies N        every Nth body is another one
  mute          accepts connections and requests, and never answers
  slow MS       answers one request after another, each after MS milliseconds
  work TURNS    runs a loop for each request

A request for /counts gets the numbers of requests received and answered before it, as JSON.
"""

import json
import selectors
import socket
import sys
import time


def reply(body):
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


RIGHT, WRONG = reply(b"ok\n"), reply(b"no\n")


class Server:
    def __init__(self, fault, number):
        self.fault, self.number = fault, number
        self.received = self.answered = 0

    def answer(self, of_connection):
        """Returns the reply to the next request of a connection; None to close it, b"" for none."""
        self.received += 1
        if self.fault == "closes" and of_connection % self.number == 0:
            return None
        if self.fault == "mute":
            return b""
        if self.fault == "slow":
            time.sleep(self.number / 1000)
        if self.fault == "work":
            for _ in range(self.number):
                pass
        self.answered += 1
        is_lie = self.fault == "lies" and self.received % self.number == 0
        return WRONG if is_lie else RIGHT

    def counts(self):
        counts = {"received": self.received, "answered": self.answered}
        return reply(json.dumps(counts).encode())


def requests(unread):
    """Yields the target of each complete request, and removes it."""
    while (end := unread.find(b"\r\n\r\n")) >= 0:
        head = bytes(unread[:end]).lower()
        length = head.partition(b"content-length: ")[2].split(b"\r\n")[0]
        whole = end + 4 + int(length or 0)
        if len(unread) < whole:
            return
        target = bytes(unread[:end]).split(b" ")[1]
        del unread[:whole]
        yield target


def serve(server, connection, state):
    """Reads what has arrived. Returns False if the connection is over."""
    try:
        received = connection.recv(65536)
        if not received:
            return False
        state["unread"] += received
        for target in requests(state["unread"]):
            if target == b"/counts":
                connection.sendall(server.counts())
                continue
            state["count"] += 1
            answer = server.answer(state["count"])
            if answer is None:
                return False
            connection.sendall(answer)
    except ConnectionError:
        return False
    return True


def main():
    port, fault = int(sys.argv[1]), sys.argv[2]
    server = Server(fault, int(sys.argv[3]) if len(sys.argv) > 3 else 0)
    selector = selectors.DefaultSelector()
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                state = {"unread": bytearray(), "count": 0}
                selector.register(connection, selectors.EVENT_READ, state)
            elif not serve(server, key.fileobj, key.data):
                selector.unregister(key.fileobj)
                key.fileobj.close()


main()
