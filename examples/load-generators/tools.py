"""The load generators: their commands, and what they print."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import urllib.parse
from dataclasses import dataclass, field

HERE = os.path.dirname(os.path.abspath(__file__))
# A tool that takes this many seconds longer than it should hangs.
PATIENCE_S = 60
# Files with siege's settings, by the time limit for replies. The files exist until the script ends.
SIEGE_SETTINGS = {}


@dataclass
class Load:
    """A load: its URL, and how long it lasts. `requests` is None for a time in seconds."""

    url: str
    connections: int
    requests: int | None = None
    seconds: float = 0
    # Concurrent requests of each connection, over HTTP/2.
    streams: int | None = None
    # True if tools with a time limit for replies get one of 1 s.
    has_limit: bool = False
    # File of a scenario of Forebay that checks the body.
    scenario: str | None = None


@dataclass
class Report:
    """Numbers that a tool printed. None stands for a number that it does not print."""

    good: int
    errors: int = 0
    bad_status: int = 0
    rate: float | None = None
    p50: str | None = None
    p99: str | None = None


@dataclass
class Ended:
    """End of a process: its output, exit code, and CPU time with all its ended children."""

    output: str
    code: int
    cpu_s: float
    hung: bool = False


@dataclass
class Tool:
    name: str
    program: str
    command: object
    read: object
    # Command that prints the version.
    version: list = field(default_factory=lambda: ["--version"])
    # False if the tool ends by time only: requests that are active then are not in its counts.
    counts_requests: bool = True
    http2: bool = False


def number(pattern, text, kind=int, default=None):
    found = re.search(pattern, text, re.MULTILINE)
    return kind(found[1]) if found else default


def forebay(load):
    url = load.url.replace("http://", "h2c://") if load.streams else load.url
    command = ["bench", url, "-t", "1", "-c", load.connections, "--quiet", "--json", "-"]
    command += ["--streams", load.streams] if load.streams else []
    command += ["--timeout", "1s"] if load.has_limit else []
    command += ["--scenario", load.scenario] if load.scenario else []
    return command + (["-n", load.requests] if load.requests else ["-d", f"{load.seconds}s"])


def json_at_start(text):
    """Returns the JSON object of the standard output. The standard error may follow it."""
    return json.JSONDecoder().raw_decode(text.lstrip())[0]


def read_forebay(text):
    report = json_at_start(text)
    requests, latency = report["requests"], report["latency_us"]
    bad = sum(count for status, count in requests["status"].items() if int(status) >= 400)
    return Report(
        good=requests["completed"] - bad,
        errors=requests["failed"],
        bad_status=bad,
        rate=report["rate_per_s"],
        p50=f"{latency['p50']:.0f} µs",
        p99=f"{latency['p99']:.0f} µs",
    )


def wrk(load):
    limit = ["--timeout", "1s"] if load.has_limit else []
    # wrk takes whole seconds only.
    time = max(1, round(load.seconds))
    return ["-t", 1, "-c", load.connections, "-d", time, "--latency", *limit, load.url]


def read_wrk(text):
    bad = number(r"Non-2xx or 3xx responses: (\d+)", text, default=0)
    errors = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text)
    return Report(
        good=number(r"(\d+) requests in", text, default=0) - bad,
        errors=sum(map(int, errors.groups())) if errors else 0,
        bad_status=bad,
        rate=number(r"Requests/sec: +([\d.]+)", text, float),
        p50=number(r"^ +50% +(\S+)", text, str),
        p99=number(r"^ +99% +(\S+)", text, str),
    )


def ab(load):
    limit = ["-s", 1] if load.has_limit else []
    time = ["-n", load.requests] if load.requests else ["-t", round(load.seconds), "-n", 100_000_000]
    return ["-k", "-q", "-r", "-c", load.connections, *limit, *time, load.url]


def read_ab(text):
    bad = number(r"Non-2xx responses: +(\d+)", text, default=0)
    errors = number(r"Failed requests: +(\d+)", text, default=0)
    complete = number(r"Complete requests: +(\d+)", text)
    if complete is None:
        # ab gave up: its last line has the number of completed requests, and no other count.
        return Report(good=number(r"Total of (\d+) requests completed", text, default=0))
    return Report(
        good=complete - bad - errors,
        errors=errors,
        bad_status=bad,
        rate=number(r"Requests per second: +([\d.]+)", text, float),
        p50=number(r"^ +50% +(\d+)", text, lambda ms: f"{ms} ms"),
        p99=number(r"^ +99% +(\d+)", text, lambda ms: f"{ms} ms"),
    )


def h2load(load):
    protocol = ["-m", load.streams] if load.streams else ["--h1"]
    limit = ["-N", "1s"] if load.has_limit else []
    time = ["-n", load.requests] if load.requests else ["-D", round(load.seconds)]
    return ["-t", 1, "-c", load.connections, *protocol, *limit, *time, load.url]


def read_h2load(text):
    bad = re.search(r"(\d+) 4xx, (\d+) 5xx", text)
    bad = sum(map(int, bad.groups())) if bad else 0
    failed = number(r", (\d+) failed", text, default=0)
    return Report(
        good=number(r"(\d+) succeeded", text, default=0),
        # h2load counts replies with these statuses as failed, too.
        errors=failed - bad,
        bad_status=bad,
        rate=number(r"finished in .*, ([\d.]+) req/s", text, float),
    )


def siege_settings(timeout):
    """Returns the file of siege's settings, which have no options on the command line."""
    if timeout not in SIEGE_SETTINGS:
        with open(os.path.join(HERE, "siege.conf"), encoding="utf-8") as file:
            text = file.read().replace("{timeout}", str(timeout))
        SIEGE_SETTINGS[timeout] = tempfile.NamedTemporaryFile("w", suffix=".conf")
        SIEGE_SETTINGS[timeout].write(text)
        SIEGE_SETTINGS[timeout].flush()
    return SIEGE_SETTINGS[timeout].name


def siege(load):
    settings = siege_settings(1 if load.has_limit else 30)
    time = ["-r", load.requests // load.connections] if load.requests else ["-t", f"{load.seconds}S"]
    return ["-R", settings, "-b", "-c", load.connections, *time, load.url]


def read_siege(text):
    def value(name, kind=int):
        return number(rf'"?{name}"?: +([\d.]+)', text.replace("\t", " "), kind)

    return Report(
        good=value("successful_transactions") or 0,
        errors=value("failed_transactions") or 0,
        rate=value("transaction_rate", float),
    )


def oha(load):
    streams = ["--http2", "-p", load.streams] if load.streams else []
    limit = ["-t", "1s"] if load.has_limit else []
    time = ["-n", load.requests] if load.requests else ["-z", f"{load.seconds}s"]
    shape = ["-c", load.connections, *streams, *limit, *time]
    return ["--no-tui", "--output-format", "json", *shape, load.url]


def read_oha(text):
    report = json_at_start(text)
    status = {int(status): count for status, count in report["statusCodeDistribution"].items()}
    errors = report["errorDistribution"]
    # Requests that were active at the end count as neither good nor failed.
    errors.pop("aborted due to deadline", None)
    percentiles = report["latencyPercentiles"]
    in_us = {name: f"{value * 1e6:.0f} µs" for name, value in percentiles.items() if value}
    bad = sum(count for code, count in status.items() if code >= 400)
    return Report(
        good=sum(status.values()) - bad,
        errors=sum(errors.values()),
        bad_status=bad,
        rate=report["summary"]["requestsPerSec"],
        p50=in_us.get("p50"),
        p99=in_us.get("p99"),
    )


def hey(load):
    limit = ["-t", 1] if load.has_limit else []
    time = ["-n", load.requests] if load.requests else ["-z", f"{load.seconds}s"]
    return ["-c", load.connections, *limit, *time, load.url]


def read_hey(text):
    replies, _, errors = text.partition("Error distribution:")
    counts = [(int(code), int(n)) for code, n in re.findall(r"\[(\d+)\]\s+(\d+) responses", replies)]
    bad = sum(count for code, count in counts if code >= 400)
    return Report(
        good=sum(count for _, count in counts) - bad,
        errors=sum(map(int, re.findall(r"^\s+\[(\d+)\]", errors, re.MULTILINE))),
        bad_status=bad,
        rate=number(r"Requests/sec:\s+([\d.]+)", text, float),
        p50=number(r"50% in ([\d.]+) secs", text, lambda s: f"{float(s) * 1e3:g} ms"),
        p99=number(r"99% in ([\d.]+) secs", text, lambda s: f"{float(s) * 1e3:g} ms"),
    )


def bare(load):
    url = urllib.parse.urlsplit(load.url)
    return [url.port, url.path, load.connections, load.streams or 0, load.seconds]


def read_bare(text):
    return Report(
        good=number(r"replies: (\d+)", text, default=0),
        rate=number(r"rate: ([\d.]+)", text, float),
    )


TOOLS = [
    Tool("forebay", "forebay", forebay, read_forebay, http2=True),
    Tool("wrk", "wrk", wrk, read_wrk, version=["-v"], counts_requests=False),
    Tool("ab", "ab", ab, read_ab, version=["-V"]),
    Tool("h2load", "h2load", h2load, read_h2load, http2=True),
    Tool("siege", "siege", siege, read_siege, version=["-V"]),
    Tool("oha", "oha", oha, read_oha, http2=True),
    Tool("hey", "hey", hey, read_hey, version=[]),
]
# A lower bound and no tool: it measures nothing. `build_bare` sets the path of the program.
BARE = Tool("bare client", "", bare, read_bare, version=[], http2=True)


def installed(forebay_path):
    """Returns the tools that are installed, and the names of the others."""
    TOOLS[0].program = os.path.abspath(forebay_path)
    there = [tool for tool in TOOLS if shutil.which(tool.program)]
    return there, [tool.name for tool in TOOLS if tool not in there]


def build_bare(folder):
    """Compiles the bare client in `folder`. Returns false without a C compiler."""
    if not shutil.which("cc"):
        return False
    BARE.program = os.path.join(folder, "bare")
    subprocess.run(["cc", "-O2", "-o", BARE.program, os.path.join(HERE, "bare.c")], check=True)
    return True


def run(arguments, core=None, patience=PATIENCE_S, home=None):
    """Runs a program to its end, on one core if it is given."""

    def prepare():
        os.setpgid(0, 0)
        if core is not None:
            os.sched_setaffinity(0, {core})

    def end():
        hung.set()
        os.killpg(process.pid, signal.SIGKILL)

    hung = threading.Event()
    environment = {**os.environ, "LC_ALL": "C.UTF-8", **({"HOME": home} if home else {})}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": errors}
        command = list(map(str, arguments))
        process = subprocess.Popen(command, preexec_fn=prepare, env=environment, **streams)
        timer = threading.Timer(patience, end)
        timer.start()
        # The usage has the CPU time of the process, and of all its children that it has awaited.
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        text = ""
        for file in [output, errors]:
            file.seek(0)
            text += file.read().decode(errors="replace") + "\n"
        cpu_s = usage.ru_utime + usage.ru_stime
        return Ended(text, process.returncode, cpu_s, hung.is_set())


def versions(tools):
    """Returns the version of each tool."""
    for tool in tools:
        text = run([tool.program, *tool.version]).output if tool.version else ""
        version = re.search(r"\d+\.\d+[.\w-]*", text)
        yield f"{tool.name} {version[0].rstrip('.')}" if version else tool.name


def missing_in_words(missing):
    return f"Not installed: {', '.join(missing)}. README.md lists the packages." if missing else ""
