"""A server that fails in a known way, and counts requests and right replies.

python3 failing.py PORT FAULT EVERY

Faults of each request whose number is a multiple of EVERY:
  none      no fault
  reset     the server reads the request and resets the connection
  close     the server reads the request and closes the connection
  idle      the server answers the request, and then closes the connection without an announcement. A request that is
            under way at this moment gets no reply
  status    the reply has the status 500
  short     the server closes the connection after half of the body
  silence   the server never answers, and keeps the connection
  body      the body is another one of the same length

A request for /counts gets the counts as JSON: requests received, and requests with the right reply.
"""

import json
import selectors
import socket
import struct
import sys

RIGHT, WRONG = b"right\n" * 100, b"wrong\n" * 100
# Seconds of SO_LINGER: zero makes close() send a reset.
NO_LINGER = struct.pack("ii", 1, 0)


def reply(body, status=b"200 OK"):
    # ab sends HTTP/1.0, and keeps a connection only after this field.
    head = b"HTTP/1.1 %s\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


class Server:
    def __init__(self, fault, every):
        self.fault, self.every = fault, every
        self.received = self.right = 0
        # Connections whose server side is closed.
        self.closed = set()

    def answer(self, connection):
        """Answers a request. Returns False if the connection is over."""
        self.received += 1
        if connection in self.closed:
            return True
        fault = self.fault if self.received % self.every == 0 else "none"
        if fault in ["none", "idle"]:
            self.right += 1
            connection.sendall(reply(RIGHT))
            if fault == "idle":
                # The server reads on until the client closes, and so counts requests without a reply.
                connection.shutdown(socket.SHUT_WR)
                self.closed.add(connection)
        elif fault == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        elif fault == "status":
            connection.sendall(reply(RIGHT, b"500 Internal Server Error"))
        elif fault == "short":
            connection.sendall(reply(RIGHT)[: -len(RIGHT) // 2])
        elif fault == "body":
            connection.sendall(reply(WRONG))
        return fault in ["none", "idle", "status", "silence", "body"]

    def serve(self, connection, unread):
        """Reads what has arrived. Returns False if the connection is over."""
        try:
            received = connection.recv(65536)
            if not received:
                return False
            unread += received
            while (end := unread.find(b"\r\n\r\n")) >= 0:
                target = bytes(unread[:end]).split(b" ")[1]
                del unread[: end + 4]
                if target == b"/counts":
                    counts = {"received": self.received, "right": self.right}
                    connection.sendall(reply(json.dumps(counts).encode()))
                elif not self.answer(connection):
                    return False
        except OSError:
            return False
        return True


def main():
    port, fault, every = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    server = Server(fault, every)
    selector = selectors.DefaultSelector()
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(connection, selectors.EVENT_READ, bytearray())
            elif not server.serve(key.fileobj, key.data):
                selector.unregister(key.fileobj)
                server.closed.discard(key.fileobj)
                key.fileobj.close()


main()
