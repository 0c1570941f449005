"""A server that delays its replies by a script, and records what it did.

python3 truth_server.py PROTOCOL SHAPE SEED

Protocols: http, cookie (http through a gateway), ws, fcgi, h2c. Shapes:
  constant  answers after 20 ms
  bimodal   answers nine of ten requests after 10 ms, and the others after 80 ms
  stall     answers after 10 ms, but sends nothing for 300 ms of each second
  silent    answers after 10 ms, and never answers one of 1,000 requests
  queue     answers one request after another, 500 a second

The first line of output is the port. When standard input ends, the server prints its records as JSON and ends. Each
record is of one client (a connection, or with `cookie` the holder of the cookie `slot`): the times of `arrived` requests,
the time at which the reply to each was `sent` (or null), the times at which the client gave up requests (`dropped`), and
the time at which it `closed` the connection (or null). All times are in ns of the monotonic clock. A time of arrival is
taken after the read, and a time of sending before the write.
"""

import heapq
import json
import random
import selectors
import socket
import sys
import time

ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Script:
    """Decides when the reply to a request is due."""

    def __init__(self, shape, seed):
        self.shape, self.random, self.begin = shape, random.Random(seed), time.monotonic()
        self.free = self.begin

    def due(self, now):
        """Returns the time of the reply to a request that has arrived `now`; None for no reply."""
        if self.shape == "constant":
            return now + 0.020
        if self.shape == "bimodal":
            return now + (0.080 if self.random.random() < 0.1 else 0.010)
        if self.shape == "silent":
            return None if self.random.random() < 0.001 else now + 0.010
        if self.shape == "queue":
            # A late reply delays none of the following ones, so the capacity is exact.
            self.free = max(self.free, now) + 0.002
            return self.free
        due = now + 0.010
        second = int(due - self.begin)
        in_second = due - self.begin - second
        return self.begin + second + 1 if in_second >= 0.7 else due


class Client:
    """Records of one client."""

    def __init__(self):
        self.arrived, self.sent, self.dropped, self.closed = [], [], [], None

    def records(self):
        return {key: getattr(self, key) for key in ("arrived", "sent", "dropped", "closed")}


class Http:
    has_cookies = False

    def __init__(self):
        self.unread = bytearray()

    def read(self, data):
        """Yields ("request", ID, cookie), ("dropped", ID, None) or ("write", bytes, None)."""
        self.unread += data
        while (end := self.unread.find(b"\r\n\r\n")) >= 0:
            head = bytes(self.unread[:end])
            del self.unread[: end + 4]
            _, found, cookie = head.partition(b"slot=")
            number = bytes(byte for byte in cookie[:6] if 48 <= byte < 58)
            yield "request", 0, int(number) if found and number else None

    def reply(self, _id, slot):
        cookie = b"" if slot is None else b"Set-Cookie: slot=%d\r\n" % slot
        return b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n%s\r\nok\n" % cookie


class Cookie(Http):
    """HTTP/1.1 through a gateway, which may distribute the requests of a client. A cookie identifies the client."""

    has_cookies = True


class WebSocket:
    has_cookies = False

    def __init__(self):
        self.unread, self.is_open = bytearray(), False

    def read(self, data):
        self.unread += data
        if not self.is_open and (end := self.unread.find(b"\r\n\r\n")) >= 0:
            del self.unread[: end + 4]
            self.is_open = True
            head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            yield "write", head + b"Sec-WebSocket-Accept: " + ACCEPT + b"\r\n\r\n", None
        # A frame of a client has two bytes, a masking key of four, and its payload.
        while self.is_open and len(self.unread) >= 2 and len(self.unread) >= (whole := 6 + (self.unread[1] & 0x7F)):
            del self.unread[:whole]
            yield "request", 0, None

    def reply(self, _id, _slot):
        return b"\x81\x02ok"


class Fastcgi:
    has_cookies = False

    def __init__(self):
        self.unread = bytearray()

    def read(self, data):
        self.unread += data
        while len(self.unread) >= 8:
            kind, number, length = self.unread[1], self.unread[2:4], int.from_bytes(self.unread[4:6], "big")
            if len(self.unread) < 8 + length:
                return
            number = int.from_bytes(number, "big")
            del self.unread[: 8 + length]
            if kind == 5 and length == 0:
                yield "request", number, None
            elif kind == 2:
                yield "dropped", number, None
            elif kind == 9:
                yield "write", b"\x01\x0a\0\0\0\x12\0\0\x0f\x01FCGI_MPXS_CONNS1", None

    def reply(self, number, _slot):
        number, text = number.to_bytes(2, "big"), b"Status: 200 OK\r\n\r\nok\n"
        end = b"\x01\x03" + number + b"\0\x08\0\0" + bytes(8)
        return b"\x01\x06" + number + len(text).to_bytes(2, "big") + b"\0\0" + text + end


class Http2:
    """HTTP/2 with prior knowledge. It reads no heads, and its own need no compression state."""

    has_cookies = False

    def __init__(self):
        self.unread, self.is_open = bytearray(), False

    def read(self, data):
        self.unread += data
        if not self.is_open and self.unread.startswith(PREFACE):
            del self.unread[: len(PREFACE)]
            self.is_open = True
            yield "write", b"\0\0\0\x04\0\0\0\0\0", None
        while self.is_open and len(self.unread) >= 9:
            length, kind, flags = int.from_bytes(self.unread[:3], "big"), self.unread[3], self.unread[4]
            if len(self.unread) < 9 + length:
                return
            stream, payload = int.from_bytes(self.unread[5:9], "big"), bytes(self.unread[9 : 9 + length])
            del self.unread[: 9 + length]
            if kind == 1:
                yield "request", stream, None
            elif kind == 3:
                yield "dropped", stream, None
            elif kind == 4 and not flags & 1:
                yield "write", b"\0\0\0\x04\x01\0\0\0\0", None
            elif kind == 6 and not flags & 1:
                yield "write", b"\0\0\x08\x06\x01\0\0\0\0" + payload, None

    def reply(self, stream, _slot):
        stream = stream.to_bytes(4, "big")
        return b"\0\0\x01\x01\x04" + stream + b"\x88" + b"\0\0\x03\0\x01" + stream + b"ok\n"


PROTOCOLS = {"http": Http, "cookie": Cookie, "ws": WebSocket, "fcgi": Fastcgi, "h2c": Http2}


class Server:
    def __init__(self, protocol, script):
        self.protocol, self.script = protocol, script
        self.clients = []
        # Replies that are not due yet: time, order, connection, ID, client and place in its records.
        self.replies = []
        self.count = 0

    def new_client(self):
        self.clients.append(Client())
        return len(self.clients) - 1

    def read(self, connection, state):
        """Reads what has arrived. Returns False if the connection is over."""
        try:
            data = connection.recv(65536)
            now = time.monotonic_ns()
            if not data:
                return False
            for event, number, cookie in state["codec"].read(data):
                if event == "write":
                    connection.sendall(number)
                elif event == "dropped":
                    self.clients[state["client"]].dropped.append(now)
                else:
                    self.take(connection, state, (number, cookie), now)
        except ConnectionError:
            return False
        return True

    def take(self, connection, state, request, now):
        number, slot = request
        if state["client"] is None and not self.protocol.has_cookies:
            state["client"] = self.new_client()
        is_new = self.protocol.has_cookies and (slot is None or slot >= len(self.clients))
        index = self.new_client() if is_new else slot if self.protocol.has_cookies else state["client"]
        client = self.clients[index]
        place = len(client.arrived)
        client.arrived.append(now)
        client.sent.append(None)
        due = self.script.due(now / 1e9)
        if due is not None:
            self.count += 1
            reply = (connection, state, number, index if is_new else None, client, place)
            heapq.heappush(self.replies, (due, self.count, reply))

    def send_due(self):
        """Sends the replies that are due. Returns the time until the next one, in seconds."""
        while self.replies:
            wait = self.replies[0][0] - time.monotonic()
            if wait > 0:
                return wait
            connection, state, number, slot, client, place = heapq.heappop(self.replies)[2]
            if state["is_over"]:
                continue
            client.sent[place] = time.monotonic_ns()
            try:
                connection.sendall(state["codec"].reply(number, slot))
            except ConnectionError:
                client.sent[place] = None
        return None

    def serve(self):
        selector = selectors.DefaultSelector()
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        selector.register(listener, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        print(listener.getsockname()[1], flush=True)
        while True:
            for key, _ in selector.select(self.send_due()):
                if key.fileobj is sys.stdin:
                    return
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    state = {"codec": self.protocol(), "client": None, "is_over": False}
                    selector.register(connection, selectors.EVENT_READ, state)
                elif not self.read(key.fileobj, key.data):
                    key.data["is_over"] = True
                    if key.data["client"] is not None:
                        self.clients[key.data["client"]].closed = time.monotonic_ns()
                    selector.unregister(key.fileobj)
                    key.fileobj.close()


def main():
    protocol, shape, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
    server = Server(PROTOCOLS[protocol], Script(shape, seed))
    server.serve()
    print(json.dumps([client.records() for client in server.clients]))


main()
