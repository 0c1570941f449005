#!/usr/bin/env python3
"""Measures the resident anonymous memory of Forebay for an idle connection.

python3 examples/peers/idle.py FOREBAY [CONNECTIONS]

For each kind of connection, opens CONNECTIONS of them (3,000 unless given), and requests a small page on each.
Prints the growth of RssAnon in `/proc/PID/status` after the first hundred connections, divided by the number of
the others. Run `examples/peers/certificate.sh` before. Needs a descriptor for each connection.
"""

import os
import resource
import socket
import ssl
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PLAIN, TLS = 8195, 8196
GET = b"GET /small.html HTTP/1.1\r\nHost: localhost\r\n\r\n"
# The preface, SETTINGS, and HEADERS of stream 1: GET over http, /small.html, localhost (RFC 7541).
BLOCK = b"\x82\x86\x04\x0b/small.html\x01\x09localhost"
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
HTTP2 += bytes([0, 0, len(BLOCK), 1, 5, 0, 0, 0, 1]) + BLOCK
WARM_UP = 100


def ask(connection, request):
    connection.sendall(request)
    seen = b""
    while b"small page" not in seen:
        piece = connection.recv(65536)
        if not piece:
            sys.exit("Forebay closed a connection")
        seen += piece
    return connection


def plain(request):
    return ask(socket.create_connection(("127.0.0.1", PLAIN), timeout=10), request)


def secured(context, protocols, request):
    context.set_alpn_protocols(protocols)
    connection = socket.create_connection(("127.0.0.1", TLS), timeout=10)
    return ask(context.wrap_socket(connection, server_hostname="localhost"), request)


def anonymous(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


def measure(forebay, config, kind, count):
    server = subprocess.Popen([forebay, "serve", config, "--threads", "1"], stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", TLS), timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        held = [kind() for _ in range(WARM_UP)]
        before = anonymous(server.pid)
        held += [kind() for _ in range(count)]
        time.sleep(1)
        grown = anonymous(server.pid) - before
        del held
        return grown / count
    finally:
        server.terminate()
        server.wait()


def main():
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    forebay, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 3000
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(count + 500, most), most))
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    kinds = {
        "HTTP/1.1": lambda: plain(GET),
        "HTTP/2": lambda: plain(HTTP2),
        "HTTP/1.1 over TLS": lambda: secured(context, ["http/1.1"], GET),
        "HTTP/2 over TLS": lambda: secured(context, ["h2"], HTTP2),
    }
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "forebay.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(
                f'[server]\nlimits = {{ connections_per_address = {count + 500} }}\n'
                f'[[site]]\nlisten = ["127.0.0.1:{PLAIN}", "https://127.0.0.1:{TLS}"]\n'
                f'tls = {{ certificate = "{HERE}/tls-cert.pem", key = "{HERE}/tls-key.pem" }}\n'
                f'[[site.route]]\npath = "/*"\nfiles = "{HERE}/htdocs"\n'
            )
        for name, kind in kinds.items():
            print(f"{name:<18} {measure(forebay, config, kind, count):8.0f} bytes", flush=True)


main()
