#!/usr/bin/python3
"""The published raw pokes: 100 threads of 100 requests each, each over its own connection.

    python3 pokes.py HOST PORT [THREADS REQUESTS]      # prints requests a second and failures, as JSON
"""

import json
import socket
import sys
import threading
import time

host, port = sys.argv[1], int(sys.argv[2])
threads, requests = (int(word) for word in sys.argv[3:5] or (100, 100))
REQUEST = b"GET /index?a=b HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % host.encode()
failed = []


def poke():
    for _ in range(requests):
        try:
            with socket.create_connection((host, port), timeout=30) as connection:
                connection.sendall(REQUEST)
                reply = b""
                while piece := connection.recv(65536):
                    reply += piece
            if not reply.startswith(b"HTTP/1.1 200") or b"</p>" not in reply:
                failed.append(reply[:80])
        except OSError as error:
            failed.append(str(error))


workers = [threading.Thread(target=poke) for _ in range(threads)]
start = time.perf_counter()
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
taken = time.perf_counter() - start
print(json.dumps({"rate": round(threads * requests / taken, 1), "failed": len(failed)}))
