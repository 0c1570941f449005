"""The clients: loads of `forebay bench`, and handshakes with a chosen node."""

import hashlib
import json
import socket
import ssl
import subprocess

from .machines import ADDRESSES, NAME, NODES, PATIENCE, ROOT, Failure, wait_for

STREAMS = 8
KINDS = ("connect", "write", "read", "timeout", "protocol", "check")


class Load:
    """A running load."""

    def __init__(self, fleet, name, *arguments):
        self.fleet, self.name, self.log = fleet, name, f"load-{name.replace('/', '')}"
        self.file = f"{ROOT}/{self.log}.json"
        shown = ["bench", *arguments, "--ca", "root.pem", "-d", "1h", "--timeout", "30s"]
        self.shown = "forebay " + " ".join(shown)
        shown[shown.index("root.pem")] = f"{ROOT}/root.pem"
        command = [fleet.binary, *shown, "--json", self.file, "--quiet"]
        with fleet.open_log(self.log) as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def check(self):
        """Raises a failure if the load has ended."""
        if self.process.poll() is not None:
            raise Failure(f"{self.shown} has ended with {self.process.returncode}: {self.fleet.log(self.log)[-2000:]}")

    def stop(self):
        """Ends the load. Returns its result."""
        self.check()
        self.process.terminate()
        self.process.wait(PATIENCE)
        with open(self.file, encoding="utf-8") as file:
            return Result(self.name, json.load(file))


class Result:
    """The counts of a load."""

    def __init__(self, name, result):
        requests = result["requests"]
        self.name, self.duration = name, result["duration_s"]
        self.completed, self.resent = requests["completed"], requests["resent"]
        self.failures = {kind: requests["failures"].get(kind, 0) for kind in KINDS}
        self.failed = sum(self.failures.values())
        self.status = {int(status): count for status, count in requests["status"].items()}
        self.other = sum(count for status, count in self.status.items() if status != 200)
        self.first_failure = result.get("first_failure")


def start_loads(fleet, connections):
    """Starts a load over HTTP/1.1 and another one over HTTP/2, each with pages and an application in turns."""
    urls = [f"https://{NAME}/page", f"https://{NAME}/app"]
    return [Load(fleet, "HTTP/1.1", *urls, "-c", str(connections), "--requests-per-connection", "100"),
            Load(fleet, "HTTP/2", *urls, "--http2", "-c", str(max(connections // 4, 4)), "--streams", str(STREAMS))]


def wait_until_loaded(fleet, loads):
    """Waits until each node has connections of both loads."""

    def is_loaded():
        for load in loads:
            load.check()
        found = fleet.servers()
        return all(int(found[backend, node]["scur"]) for backend in ("http1", "http2") for node in NODES)

    wait_for("each node has connections of both loads", is_loaded)


class Answer:
    """An answer to one request on its own TLS connection."""

    def __init__(self, connection, head, session):
        self.resumed, self.session = connection.session_reused, session
        self.certificate = hashlib.sha256(connection.getpeercert(binary_form=True)).hexdigest()
        lines = head.split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}


def context():
    """Returns a TLS client that trusts Pebble's certificates."""
    return ssl.create_default_context(cafile=f"{ROOT}/root.pem")


def ask(machine, path, tls, session=None):
    """Requests a path of a node, or of the load balancer. A node expects a PROXY header."""
    address = ADDRESSES[machine]
    with socket.create_connection((address, 443), timeout=PATIENCE) as plain:
        if machine != "lb":
            plain.sendall(f"PROXY TCP4 {ADDRESSES['client']} {address} 40000 443\r\n".encode())
        with tls.wrap_socket(plain, server_hostname=NAME, session=session) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n".encode())
            # The tickets of TLS 1.3 come with the reply.
            text = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
            return Answer(connection, text.partition("\r\n\r\n")[0], connection.session)


def try_ask(machine, path, tls):
    """Returns None if there is no answer."""
    try:
        return ask(machine, path, tls)
    except (OSError, IndexError, ValueError):
        return None
