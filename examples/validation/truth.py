"""Compares the percentiles of `forebay bench` with the times that a server recorded.

No plan of the server is used, because a busy machine delays every plan. The server's own records give limits for the
latency of each request. They hold for any delay by the scheduler, on either side:

- The client cannot see a reply before the server sends it, and cannot send a request after the server has read it. So
  the latency is at least the time from arrival to reply.
- In a closed loop, a client with S streams sends request number j only when it has seen all but S - 1 of the earlier
  requests end. So it had seen reply number j - S when request j arrived. And request j was due, at the earliest, when
  the server sent reply j - S. The latency is at most the time between these limits. Requests that the client gave up
  count as ended.

Order statistics keep limits: each percentile of the latencies lies between the percentiles of the lower and of the upper
limits. The only tolerance is the precision of the histogram (3 significant digits).
"""

import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from datetime import datetime

HERE = os.path.dirname(os.path.abspath(__file__))
PERCENTILES = {"p50": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99, "p99_9": 99.9}
SHAPES = ["constant", "bimodal", "stall", "silent"]
# Name, protocol of the server, scheme, connections, streams, further options. HTTP/3 passes through `forebay serve`.
PROTOCOLS = [
    ("HTTP/1.1", "http", "http", 16, 1, []),
    ("HTTP/2", "h2c", "h2c", 2, 8, []),
    ("HTTP/3", "cookie", "https", 16, 1, ["--http3", "--insecure", "--cookies"]),
    ("WebSocket", "ws", "ws", 16, 1, []),
    ("FastCGI", "fcgi", "fcgi", 2, 8, []),
]
REQUESTS = {"constant": 1500, "bimodal": 1500, "stall": 2500, "silent": 2000}
TIMEOUT_S = 2
# Relative precision of the histogram, and its unit.
DIGITS, UNIT_US = 0.001, 1
# If the limits of the medians are usually farther apart, a run proves little.
WIDEST = 0.15


def be_punctual():
    """Gives this process real-time priority, if it may have it. Other programs then delay it less."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))


@contextlib.contextmanager
def server(protocol, shape, seed):
    """Starts the server. Yields its port, and a function that ends the server and returns its records."""
    command = [sys.executable, os.path.join(HERE, "truth_server.py"), protocol, shape, str(seed)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, preexec_fn=be_punctual)
    try:
        yield int(process.stdout.readline()), lambda: json.loads(process.communicate(timeout=60)[0])
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def gateway(forebay, port):
    """Starts `forebay serve` with HTTP/3 as a proxy of the server. Yields its port."""
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = os.path.join(folder, "key.pem"), os.path.join(folder, "cert.pem")
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate]
        subprocess.run([*make, "-subj", "/CN=127.0.0.1"], check=True, stderr=subprocess.DEVNULL)
        entrance = free_port()
        path = os.path.join(folder, "site.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(
                f'[server]\nthreads = 1\n[[site]]\nlisten = "https://127.0.0.1:{entrance}"\nhttp3 = true\n'
                f'tls = {{ certificate = "{certificate}", key = "{key}" }}\n'
                f'[[site.route]]\nproxy = "http://127.0.0.1:{port}"\n'
            )
        command = [forebay, "serve", path]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=be_punctual)
        try:
            deadline = time.monotonic() + 20
            while True:
                try:
                    socket.create_connection(("127.0.0.1", entrance)).close()
                    break
                except ConnectionRefusedError:
                    if process.poll() is not None or time.monotonic() > deadline:
                        sys.exit(f"truth: forebay serve has ended: {process.communicate()[1]}")
                    time.sleep(0.01)
            yield entrance
        finally:
            process.kill()
            process.wait()


def bound(client, streams, begin, end, given_up):
    """Returns the least and the greatest latency of each answered request of one client, in ns.

    `begin` and `end` are those of the run. `given_up` has the earliest times at which requests of earlier connections
    ended, whose places this connection may have taken.
    """
    arrived, dropped = client["arrived"], client["dropped"]
    sent = [at for at in client["sent"] if at is not None]
    order = {at: place for place, at in enumerate(sorted(sent))}
    sent.sort()
    first = given_up.pop(0) if given_up else begin
    # Number of the reply that the client must have seen before request j, and the earliest due time of request j.
    seen, due = [], []
    for place, at in enumerate(arrived):
        # With one stream, a further request follows the end of each earlier one.
        given = client["sent"][:place].count(None) if streams == 1 else sum(drop <= at for drop in dropped)
        before = place - streams - given
        seen.append(before)
        earliest = sent[before] if 0 <= before < len(sent) else first
        if streams == 1 and place > 0 and client["sent"][place - 1] is None:
            earliest = max(earliest, due[-1] + TIMEOUT_S * 10**9)
        due.append(earliest)
    latest = end if client["closed"] is None else client["closed"]
    bounds = []
    for place, at in enumerate(arrived):
        reply = client["sent"][place]
        if reply is None:
            continue
        later = (arrived[j] for j in range(place + 1, len(arrived)) if seen[j] >= order[reply])
        bounds.append((reply - at, next(later, latest) - due[place]))
    return bounds, due


def limits_of(clients, connections, streams, begin, end):
    """Returns the sorted least and greatest latencies of all answered requests, in us."""
    given_up, bounds = [], []
    # A connection that replaces another one begins when a request of that one was given up.
    clients = sorted((client for client in clients if client["arrived"]), key=lambda client: client["arrived"][0])
    for number, client in enumerate(clients):
        given_up.sort()
        found, due = bound(client, streams, begin, end, given_up if number >= connections else [])
        bounds += found
        if client["sent"][-1] is None and streams == 1:
            given_up.append(due[-1] + TIMEOUT_S * 10**9)
    return [sorted(limit[side] / 1000 for limit in bounds) for side in (0, 1)]


def rank(values, percent):
    return values[max(1, math.ceil(percent / 100 * len(values) - 1e-6)) - 1]


def load(forebay, protocol, shape, seed):
    """Loads a server. Returns the JSON of bench, and the limits of the latencies."""
    _, codec, scheme, connections, streams, options = protocol
    with server(codec, shape, seed) as (port, records):
        with gateway(forebay, port) if codec == "cookie" else contextlib.nullcontext(port) as entrance:
            command = [forebay, "bench", f"{scheme}://127.0.0.1:{entrance}/", "-n", str(REQUESTS[shape])]
            command += ["-c", str(connections), "--streams", str(streams), "--timeout", f"{TIMEOUT_S}s"]
            command += ["--quiet", "--json", "-", *options]
            begin, clock = time.monotonic_ns(), time.time_ns()
            ended = subprocess.run(command, timeout=300, stdout=subprocess.PIPE, text=True, preexec_fn=be_punctual)
            end = time.monotonic_ns()
        if not ended.stdout:
            sys.exit(f"truth: {' '.join(command)} failed")
        json_ = json.loads(ended.stdout)
        # Each latency begins after the start that bench reports, which is itself after `begin`.
        started = datetime.fromisoformat(json_["started_at"].replace("Z", "+00:00")).timestamp()
        begin = max(begin, min(end, begin + int(started * 1e9) - clock - 10**6))
        return json_, limits_of(records(), connections, streams, begin, end)


def check(forebay, protocol, shape, seed):
    """Returns the mistakes of one run, and the width of the limits at the median."""
    json_, (least, greatest) = load(forebay, protocol, shape, seed)
    requests, mistakes = json_["requests"], []
    unanswered = REQUESTS[shape] - len(least)
    if (requests["completed"], requests["failed"]) != (len(least), unanswered):
        mistakes.append(f"{requests['completed']} completed and {requests['failed']} failed, not {len(least)} and {unanswered}")
    if requests["failures"]["timeout"] != unanswered:
        mistakes.append(f"{requests['failures']['timeout']} timeouts, not {unanswered}")
    for name, percent in PERCENTILES.items():
        low, value, high = rank(least, percent), json_["latency_us"][name], rank(greatest, percent)
        if not low * (1 - DIGITS) - UNIT_US <= value <= high * (1 + DIGITS) + UNIT_US:
            mistakes.append(f"{name} is {value} us, and the server caused {low:.0f} to {high:.0f}")
    return mistakes, rank(greatest, 50) / rank(least, 50) - 1


def check_all(forebay, seed):
    """Loads all servers. Returns true if all percentiles agree with the delays, and the result in words."""
    widths = []
    for protocol in PROTOCOLS:
        for shape in SHAPES:
            mistakes, width = check(forebay, protocol, shape, seed)
            if mistakes:
                return False, f"{protocol[0]}, {shape}: {'; '.join(mistakes)}"
            widths.append(width)
    usual = sorted(widths)[len(widths) // 2]
    words = f"{len(widths)} loads, limits of the medians {usual:.1%} apart, at most {max(widths):.1%}"
    return usual <= WIDEST, words + (": the machine is too busy" if usual > WIDEST else "")


def free_port():
    """Returns a port that nothing uses, neither over TCP nor over UDP."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as stream, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
            with contextlib.suppress(OSError):
                datagrams.bind(stream.getsockname())
                return stream.getsockname()[1]
