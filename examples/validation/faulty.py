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
import os
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import http_server


def reply(body):
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


RIGHT, WRONG = reply(b"ok\n"), reply(b"no\n")


class Server:
    def __init__(self, fault, number):
        self.fault, self.number = fault, number
        self.received = self.answered = 0

    def answer(self, client, target):
        """Answers a request. Returns False if the connection is over."""
        if target == b"/counts":
            counts = {"received": self.received, "answered": self.answered}
            client.socket.sendall(reply(json.dumps(counts).encode()))
            return True
        client.requests += 1
        self.received += 1
        if self.fault == "closes" and client.requests % self.number == 0:
            return False
        if self.fault == "mute":
            return True
        if self.fault == "slow":
            time.sleep(self.number / 1000)
        if self.fault == "work":
            for _ in range(self.number):
                pass
        self.answered += 1
        is_lie = self.fault == "lies" and self.received % self.number == 0
        client.socket.sendall(WRONG if is_lie else RIGHT)
        return True


number = int(sys.argv[3]) if len(sys.argv) > 3 else 0
http_server.serve(int(sys.argv[1]), Server(sys.argv[2], number).answer)
