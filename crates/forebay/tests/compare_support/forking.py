#!/usr/bin/python3
# A server that forks a child for each request, for the tests of `forebay compare`.
#   forking.py PORT FOLDER MS
# The child takes MS milliseconds of CPU time, answers and ends. Then the server appends a line to
# FOLDER/accounts: its own CPU time so far, and that of the child, in microseconds (wait4).
import os
import resource
import socket
import sys
import time

port, folder, milliseconds = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n"


def taken(usage):
    return round((usage.ru_utime + usage.ru_stime) * 1e6)


def answer(client):
    head = b""
    while b"\r\n\r\n" not in head:
        head += client.recv(4096) or b"\r\n\r\n"
    while time.process_time() < milliseconds / 1e3:
        pass
    client.sendall(REPLY)


listener = socket.create_server(("127.0.0.1", port), backlog=64)
while True:
    client, _ = listener.accept()
    child = os.fork()
    if child == 0:
        answer(client)
        os._exit(0)
    client.close()
    _, _, usage = os.wait4(child, 0)
    own = taken(resource.getrusage(resource.RUSAGE_SELF))
    with open(f"{folder}/accounts", "a", encoding="ascii") as accounts:
        accounts.write(f"{own} {taken(usage)}\n")
