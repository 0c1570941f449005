"""A WebSocket server (RFC 6455) that sends each message back: echo.py PORT."""
import base64
import hashlib
import socketserver
import struct
import sys


class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        fields = {}
        self.rfile.readline()
        while (line := self.rfile.readline().strip()):
            name, value = line.split(b":", 1)
            fields[name.lower()] = value.strip()
        digest = hashlib.sha1(fields[b"sec-websocket-key"] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
        self.wfile.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + base64.b64encode(digest) + b"\r\n\r\n"
        )
        while self.frame():
            pass

    def frame(self):
        first, second = self.rfile.read(2)
        length = second & 127
        if length == 126:
            (length,) = struct.unpack("!H", self.rfile.read(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", self.rfile.read(8))
        mask = self.rfile.read(4) * (length // 4 + 1)
        payload = bytes(a ^ b for a, b in zip(self.rfile.read(length), mask))
        if length < 126:
            head = bytes([first, length])
        elif length < 65536:
            head = struct.pack("!BBH", first, 126, length)
        else:
            head = struct.pack("!BBQ", first, 127, length)
        self.wfile.write(head + payload)
        # Answers a close frame with a close frame.
        return first & 15 != 8


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


Server(("127.0.0.1", int(sys.argv[1])), Echo).serve_forever()
