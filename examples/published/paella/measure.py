#!/usr/bin/python3
"""Measures one server with three clients: a thousand runs of curl, the raw pokes (pokes.py), and `forebay
bench`. Then measures it with `forebay bench` through `forebay serve`, and prints the times of Forebay's steps
and of the server's nine steps.

    python3 measure.py FOREBAY [--quick]       # JSON on standard output, progress on standard error
"""

import concurrent.futures
import json
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
forebay, quick = sys.argv[1], "--quick" in sys.argv
CURLS = 200 if quick else 1000
POKES = ("20", "50") if quick else ("100", "100")
REQUESTS = "1000" if quick else "10000"


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_for(port, process):
    for _ in range(200):
        if process.poll() is not None:
            sys.exit("the server on port %d ended: %s" % (port, process.args))
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    sys.exit("nothing answers on port %d" % port)


def bench(port):
    command = [forebay, "bench", "http://127.0.0.1:%d/index?a=b" % port, "-c", "100", "-n", REQUESTS,
               "--no-keepalive", "--quiet", "--json", "-", "--allow-failures"]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return {"rate": report["rate_per_s"], "failed": report["requests"]["failed"]}


def curls(port):
    """Starts a process for each request, four at a time: the published run took 3.35 processors."""
    command = ["curl", "-sf", "-o", "/dev/null", "http://127.0.0.1:%d/index?a=b" % port]
    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(lambda _: subprocess.run(command).returncode, range(CURLS)))
    taken = time.perf_counter() - start
    return {"rate": CURLS / taken, "failed": sum(code != 0 for code in codes)}


def pokes(port):
    command = [sys.executable, HERE / "pokes.py", "127.0.0.1", str(port), *POKES]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def steps_of(admin):
    """Returns the mean of each step of Forebay, in us, from its histogram."""
    text = urllib.request.urlopen("http://127.0.0.1:%d/metrics" % admin, timeout=10).read().decode()
    found = {}
    for name, kind, step, value in re.findall(r"^(forebay\w*step\w*)_(sum|count)\{[^}]*step=\"([^\"]+)\"[^}]*\} (\S+)", text, re.M):
        found.setdefault(step, {})[kind] = float(value)
    return {step: round(both["sum"] / both["count"] * 1e6, 1)
            for step, both in found.items() if both.get("count")}


def main():
    backend, port, admin = free_ports(3)
    server = subprocess.Popen([sys.executable, HERE / "server.py", str(backend)], stdout=subprocess.PIPE)
    front = None
    with tempfile.TemporaryDirectory() as directory:
        try:
            wait_for(backend, server)
            result = {}
            for name, client in (("curl", curls), ("pokes", pokes), ("bench", bench)):
                print(name, file=sys.stderr)
                result[name] = client(backend)
            text = (HERE / "front.toml").read_text()
            for word, value in (("ADMIN", admin), ("PORT", port), ("BACKEND", backend)):
                text = text.replace(":" + word, ":%d" % value)
            site = pathlib.Path(directory) / "front.toml"
            site.write_text(text)
            front = subprocess.Popen([forebay, "serve", site], stderr=subprocess.DEVNULL)
            wait_for(port, front)
            print("bench through Forebay", file=sys.stderr)
            result["through Forebay"] = bench(port)
            result["steps of Forebay, us"] = steps_of(admin)
        finally:
            for process in (front, server):
                if process is not None:
                    process.terminate()
            result["steps of the server, us"] = json.loads(server.communicate(timeout=20)[0])["us"]
            if front is not None:
                front.wait(timeout=20)
    result["ratios"] = {"pokes / curl": result["pokes"]["rate"] / result["curl"]["rate"],
                        "bench / curl": result["bench"]["rate"] / result["curl"]["rate"]}
    json.dump(result, sys.stdout, indent=2)
    print()


main()
