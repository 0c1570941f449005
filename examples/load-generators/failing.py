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
import os
import socket
import struct
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import http_server

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

    def answer(self, client, target):
        """Answers a request. Returns False if the connection is over."""
        if target == b"/counts":
            counts = {"received": self.received, "right": self.right}
            client.socket.sendall(reply(json.dumps(counts).encode()))
            return True
        self.received += 1
        if client.is_shut:
            return True
        fault = self.fault if self.received % self.every == 0 else "none"
        if fault in ["none", "idle"]:
            self.right += 1
            client.socket.sendall(reply(RIGHT))
            if fault == "idle":
                # The server reads on until the client closes, and so counts requests without a reply.
                client.socket.shutdown(socket.SHUT_WR)
                client.is_shut = True
        elif fault == "reset":
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        elif fault == "status":
            client.socket.sendall(reply(RIGHT, b"500 Internal Server Error"))
        elif fault == "short":
            client.socket.sendall(reply(RIGHT)[: -len(RIGHT) // 2])
        elif fault == "body":
            client.socket.sendall(reply(WRONG))
        return fault in ["none", "idle", "status", "silence", "body"]


http_server.serve(int(sys.argv[1]), Server(sys.argv[2], int(sys.argv[3])).answer)
