#!/usr/bin/env python3
"""Compares load generators by their own CPU time: each loads the same nginx in turn.

python3 examples/load-generators/speed.py FOREBAY [--rounds 10] [--turn 2] [--out speed.md]

Each round runs every tool for a turn (in seconds), in a random order. nginx runs on core 0, and the tools on core 1.
If `cc` is installed, the bare client (`bare.c`) also has turns. Its ratio is a lower bound for the tools.
Prints the table and writes it to a file. Exit code 1 if Forebay takes more CPU time than the ratios below.
"""

import argparse
import contextlib
import math
import os
import platform
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import dataclass

import tools
from tools import HERE, Load

sys.path.append(os.path.join(HERE, ".."))
import http_server

SERVER_CORE, CLIENT_CORE = 0, 1
PAGE = b"<!doctype html><title>A page</title>\n" + b"<p>A line of thirty bytes.</p>\n" * 32
# Two-sided quantiles of Student's t, at 95 %, for 1 to 30 degrees of freedom.
STUDENT = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13]
STUDENT += [2.12, 2.11, 2.10, 2.09, 2.09, 2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05, 2.04]


@dataclass
class Shape:
    """Shape of a load. `most` is the required ratio of Forebay's CPU time to that of the `base` tool."""

    name: str
    connections: int
    most: float
    base: str = "wrk"
    streams: int | None = None


SHAPES = [
    Shape("1 connection", 1, 1.0),
    Shape("32 connections", 32, 0.8),
    Shape("1,024 connections", 1024, 0.65),
    Shape("HTTP/2, 8 connections of 32 streams", 8, 0.5, "h2load", 32),
]


@dataclass
class Turn:
    """Results of a tool in one round. `counted` is the number of requests that nginx counted."""

    report: tools.Report
    counted: int
    cpu_us: float


@contextlib.contextmanager
def nginx():
    """Runs nginx. Yields the URLs of its status and of the page, for HTTP/1.1 and for HTTP/2."""
    with tempfile.TemporaryDirectory() as folder:
        port, http2_port = http_server.free_port(), http_server.free_port()
        os.chmod(folder, 0o755)
        os.mkdir(os.path.join(folder, "htdocs"))
        with open(os.path.join(folder, "htdocs", "page.html"), "wb") as file:
            file.write(PAGE)
        with open(os.path.join(HERE, "nginx.conf"), encoding="utf-8") as file:
            text = file.read()
        for name, value in {"tmp": folder, "port": port, "http2_port": http2_port}.items():
            text = text.replace(f"{{{name}}}", str(value))
        path = os.path.join(folder, "nginx.conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        pin = lambda: os.sched_setaffinity(0, {SERVER_CORE})
        process = subprocess.Popen(["nginx", "-p", folder, "-c", path], preexec_fn=pin)
        try:
            http_server.wait_for(port, process)
            base = f"http://127.0.0.1:{port}"
            yield base, f"{base}/page.html", f"http://127.0.0.1:{http2_port}/page.html"
        finally:
            process.terminate()
            process.wait()


def requests_so_far(base):
    """Returns the number of requests that nginx has received, including this one."""
    with urllib.request.urlopen(f"{base}/status") as reply:
        return int(re.search(r"requests\s+\d+ \d+ (\d+)", reply.read().decode())[1])


def turn(tool, load, base, home):
    """Runs a tool once. Returns None if the tool did not end by itself."""
    before = requests_so_far(base)
    ended = tools.run([tool.program, *tool.command(load)], core=CLIENT_CORE, home=home)
    counted = requests_so_far(base) - before - 1
    if ended.hung:
        return None
    if counted < 1:
        sys.exit(f"{tool.name} failed (exit code {ended.code}):\n{ended.output}")
    return Turn(tool.read(ended.output), counted, ended.cpu_s * 1e6 / counted)


def measure(there, rounds, seconds):
    """Returns the turns of each shape and tool."""
    turns = {}
    with nginx() as (base, url, http2_url), tempfile.TemporaryDirectory() as home:
        for each in range(rounds):
            for shape in SHAPES:
                chosen = [tool for tool in there if tool.http2 or not shape.streams]
                for tool in random.sample(chosen, len(chosen)):
                    target = http2_url if shape.streams else url
                    load = Load(target, shape.connections, seconds=seconds, streams=shape.streams)
                    key = (shape.name, tool.name)
                    turns.setdefault(key, []).append(turn(tool, load, base, home))
            print(f"round {each + 1} of {rounds}", file=sys.stderr, flush=True)
    return turns


def ratio(mine, base):
    """Returns the geometric mean of the ratios of each round, and the limits of its interval."""
    pairs = [(one, other) for one, other in zip(mine, base) if one and other]
    logs = [math.log(one.cpu_us / other.cpu_us) for one, other in pairs]
    if not logs:
        return None
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), 0.0, math.inf
    quantile = STUDENT[min(len(logs) - 1, len(STUDENT)) - 1]
    half = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    return tuple(math.exp(value) for value in [mean, mean - half, mean + half])


def in_us(printed):
    value, unit = re.fullmatch(r"([\d.]+) ?(\D+)", printed).groups()
    return float(value) * {"us": 1, "µs": 1, "ms": 1e3, "s": 1e6}[unit]


def middle(turns, name):
    """Returns the printed latency in the middle of all rounds."""
    printed = [value for each in turns if (value := getattr(each.report, name))]
    return sorted(printed, key=in_us)[len(printed) // 2] if printed else "-"


def row(tool, all_turns, base):
    turns = [each for each in all_turns if each]
    if not turns:
        return f"| {tool} | never ended | | | | | |"
    hung = len(all_turns) - len(turns)
    rates = [each.report.rate for each in turns if each.report.rate is not None]
    compared = ratio(all_turns, base) if all_turns is not base else None
    reported = sum(each.report.good + each.report.bad_status for each in turns)
    cells = [
        f"{tool} (did not end in {hung} turns)" if hung else tool,
        f"{statistics.median(rates):,.0f}" if rates else "-",
        f"{statistics.median(each.cpu_us for each in turns):.2f}",
        "{:.2f} ({:.2f} to {:.2f})".format(*compared) if compared else "1",
        middle(turns, "p50"),
        middle(turns, "p99"),
        f"{100 * reported / sum(each.counted for each in turns):.2f} %",
    ]
    return f"| {' | '.join(cells)} |"


def table(turns):
    """Returns the lines of the tables, and true if all required ratios hold."""
    lines, holds = [], True
    for shape in SHAPES:
        of_shape = {tool: each for (name, tool), each in turns.items() if name == shape.name}
        base = of_shape.get(shape.base)
        if base is None:
            lines += [f"{shape.name}: {shape.base} is not installed, so there is no ratio.", ""]
            continue
        head = ["tool", "requests/s", "client CPU, µs a request", f"ratio to {shape.base}"]
        head += ["p50", "p99", "requests in its report"]
        lines += [f"{shape.name}:", "", f"| {' | '.join(head)} |", "|---|---:|---:|---:|---:|---:|---:|"]
        order = [tool.name for tool in [*tools.TOOLS, tools.BARE] if tool.name in of_shape]
        lines += [row(tool, of_shape[tool], base) for tool in order]
        mean = ratio(of_shape["forebay"], base)[0]
        holds = holds and mean <= shape.most
        verdict = "holds" if mean <= shape.most else "missed"
        lines += ["", f"Required: forebay at most {shape.most:g} times {shape.base}: {verdict}.", ""]
    return lines, holds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("forebay")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--turn", type=float, default=2, help="whole seconds, because wrk and ab take no others")
    parser.add_argument("--out", default="speed.md")
    options = parser.parse_args()
    there, missing = tools.installed(options.forebay)
    # 1,024 connections, and a thread for each of them in siege.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, most) if most > 0 else 8192, most))
    server = subprocess.run(["nginx", "-v"], stderr=subprocess.PIPE, text=True).stderr.strip()
    with tempfile.TemporaryDirectory() as folder:
        measured = there + ([tools.BARE] if tools.build_bare(folder) else [])
        lines, holds = table(measure(measured, options.rounds, options.turn))
    lines += [f"{options.rounds} rounds of {options.turn:g} s. {tools.missing_in_words(missing)}".strip()]
    lines += [f"{', '.join(tools.versions(there))}; {server}; Linux {platform.release()}."]
    text = "\n".join(lines) + "\n"
    print(text)
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(text)
    sys.exit(not holds)


if __name__ == "__main__":
    main()
