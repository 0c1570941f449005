#!/usr/bin/env python3
"""Measures the latency of an ordinary HTTP/2 client, and the memory of Forebay, while attackers
abuse the protocol.

python3 examples/abuse/http2.py FOREBAY [STREAMS]

`forebay bench` requests a small page 200 times a second over 4 connections. Meanwhile, the attackers run one after the
other. The first opens and resets streams (100,000 unless STREAMS is given). The second sends as many CONTINUATION frames.
The third requests a large file on each of 1,000 connections, but gives no window for it. The script prints the client's
p99, and the largest growth of Forebay's resident memory. Exit code 1: a p99 reached 100 ms, a request of the client failed,
or the memory grew by more than 64 MiB. `crates/forebay-gateway/tests/memory/http2_abuse.rs` checks Forebay's answers to
such connections.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

PORT = 8194
MOST_MS, MOST_MIB = 100, 64
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, CONTINUATION = 0, 1, 3, 4, 9
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE = (4).to_bytes(2, "big")
CANCEL = (8).to_bytes(4, "big")


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def request(path):
    """Returns the header block (RFC 7541) of a GET over http from localhost, without Huffman coding."""
    block = b"\x82\x86"
    for index, value in ((0x04, path), (0x01, "localhost")):
        block += bytes([index, len(value)]) + value.encode()
    return block


def connect(settings=b""):
    connection = socket.create_connection(("127.0.0.1", PORT), timeout=10)
    connection.sendall(PREFACE + frame(SETTINGS, 0, 0, settings))
    return connection


def send_until_refused(pieces):
    """Sends `pieces` over one connection. Returns the number of pieces sent, and True if the server
    ended the connection."""
    sent = 0
    with connect() as connection:
        reader = threading.Thread(target=drain, args=(connection,), daemon=True)
        reader.start()
        for piece in pieces:
            try:
                connection.sendall(piece)
            except OSError:
                return sent, True
            sent += 1
        return sent, False


def drain(connection):
    try:
        while connection.recv(65536):
            pass
    except OSError:
        pass


def resets(count):
    """Opens and resets streams, a hundred at a time."""
    done = connections = 0
    while done < count:
        left = range(min(count - done, 100_000))
        opened = (
            frame(HEADERS, END_STREAM | END_HEADERS, 2 * n + 1, request("/small.html"))
            + frame(RST_STREAM, 0, 2 * n + 1, CANCEL)
            for n in left
        )
        sent, _ = send_until_refused(b"".join(piece) for piece in in_hundreds(opened))
        done += 100 * max(sent, 1)
        connections += 1
    return f"{done:,} streams opened and reset, over {connections:,} connections"


def in_hundreds(pieces):
    hundred = []
    for piece in pieces:
        hundred.append(piece)
        if len(hundred) == 100:
            yield hundred
            hundred = []
    if hundred:
        yield hundred


def continuations(count):
    """Sends heads that never end."""
    done = connections = 0
    line = b"\x00\x01a\x7f\x01" + 128 * b"b"
    while done < count:
        first = frame(HEADERS, END_STREAM, 1, request("/small.html"))
        rest = (frame(CONTINUATION, 0, 1, line) for _ in range(min(count - done, 100_000)))
        sent, _ = send_until_refused((piece for source in ([first], rest) for piece in source))
        done += max(sent, 1)
        connections += 1
    return f"{done:,} frames, over {connections:,} connections"


def closed_windows(_):
    """Holds 1,000 connections, each with a reply for which it gives no window."""
    settings = INITIAL_WINDOW_SIZE + bytes(4)
    held = []
    for _ in range(1000):
        connection = connect(settings)
        connection.sendall(frame(HEADERS, END_STREAM | END_HEADERS, 1, request("/large")))
        held.append(connection)
    time.sleep(5)
    for connection in held:
        connection.close()
    return "1,000 connections held for 5 s"


def resident_mib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


class Peak(threading.Thread):
    """Records the highest memory of a process from its start on."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.most, self.ended = pid, resident_mib(pid), False

    def run(self):
        while not self.ended:
            self.most = max(self.most, resident_mib(self.pid))
            time.sleep(0.05)


def bench(forebay, seconds):
    command = [forebay, "bench", f"h2c://127.0.0.1:{PORT}/small.html", "-c", "4", "-t", "1", "-r", "200"]
    command += ["-d", f"{seconds}s", "--json", "-"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def attack(forebay, pid, assault, count):
    """Returns the row of one attacker, and True if it is within bounds."""
    before, peak = resident_mib(pid), Peak(pid)
    peak.start()
    client = bench(forebay, 12)
    time.sleep(1)
    words = assault(count)
    seen = json.loads(client.communicate(timeout=60)[0])
    peak.ended = True
    p99, failed = seen["latency_us"]["p99"] / 1000, seen["requests"]["failed"]
    grew = peak.most - before
    print(f"{assault.__name__:<16} {p99:8.2f} ms {failed:7} {grew:8.1f} MiB  {words}", flush=True)
    return p99 < MOST_MS and failed == 0 and grew < MOST_MIB


def serve(forebay, folder):
    with open(os.path.join(folder, "small.html"), "w", encoding="ascii") as page:
        page.write("<title>A small page</title>")
    with open(os.path.join(folder, "large"), "wb") as large:
        large.write(bytes(1 << 20))
    config = os.path.join(folder, "forebay.toml")
    with open(config, "w", encoding="ascii") as file:
        file.write(f'[[site]]\nlisten = "127.0.0.1:{PORT}"\n[[site.route]]\npath = "/*"\nfiles = "{folder}"\n')
    server = subprocess.Popen([forebay, "serve", config], stderr=subprocess.DEVNULL)
    for _ in range(100):
        try:
            connect().close()
            return server
        except OSError:
            time.sleep(0.1)
    server.terminate()
    sys.exit("Forebay does not answer")


def main():
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    forebay, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 100_000
    with tempfile.TemporaryDirectory() as folder:
        server = serve(forebay, folder)
        try:
            print(f"{'':<16} {'p99':>11} {'failed':>7} {'memory':>12}")
            rows = [attack(forebay, server.pid, assault, count) for assault in (resets, continuations, closed_windows)]
        finally:
            server.terminate()
            server.wait()
    sys.exit(not all(rows))


main()
