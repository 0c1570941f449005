#!/usr/bin/env python3
"""Checks that `forebay compare` finds real differences and nothing else.

python3 examples/validation/validate.py FOREBAY [RUNS [NAME...]]

Runs experiments whose truth is known, RUNS times each (20 unless given), and counts what was found. NAME selects
experiments. Needs nginx and two cores that nothing else uses. Exit code 1 if fewer runs than required were right.
"""

import concurrent.futures
import contextlib
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

import truth as scripted_truth

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, ".."))
import http_server

# Largest number of files that a process may open.
FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
# A run that takes longer hangs.
PATIENCE_S = 300


def run(forebay, experiment, seed, *more):
    """Returns the report of one run, and how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(HERE, experiment)
        command = [forebay, "compare", path, "--quiet", "--seed", str(seed), "--out", folder, *more]
        ended = subprocess.run(command, timeout=PATIENCE_S, stderr=subprocess.PIPE, text=True)
        with open(os.path.join(folder, "report.json"), encoding="utf-8") as file:
            report = json.load(file)
        if not report["complete"]:
            sys.exit(f"{experiment}: {report['incomplete_reason']}\n{ended.stderr}")
        return report, ended


def compare(forebay, experiment, seed, *more):
    """Returns the report of one run. Its exit code does not matter here."""
    return run(forebay, experiment, seed, *more)[0]


def server(*fault):
    """Starts the faulty server. Yields its URL."""
    return http_server.running(os.path.join(HERE, "faulty.py"), *fault)


def bench(forebay, *arguments, before=None):
    """Returns the exit code and the JSON of `forebay bench`. Its process first calls `before`."""
    command = [forebay, "bench", "--quiet", "--json", "-", *arguments]
    ended = subprocess.run(command, timeout=PATIENCE_S, stdout=subprocess.PIPE, text=True, preexec_fn=before)
    return ended.returncode, json.loads(ended.stdout)


@contextlib.contextmanager
def busy_machine(count=4):
    """Keeps the processors busy with this many processes."""
    loop = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(loop) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def ratio_in_words(ratio):
    if ratio is None:
        return "no ratio: every trial is void"
    low, high = ratio["ci95"]
    width = math.inf if low is None or high is None else (high / low - 1) * 50
    return f"{ratio['verdict']:<6} {ratio['mean']:.3f} +-{width:.1f} %"


def in_words(candidate):
    """Returns the result for rate and CPU per request, and the number of slices."""
    slices = candidate["slices"]
    return (
        f"rate {ratio_in_words(candidate['ratio'])}, CPU {ratio_in_words(candidate['cpu_ratio'])}, "
        f"{slices['disturbed']} of {slices['all']} slices disturbed"
    )


def equal(forebay, seed):
    """Two copies of one nginx: no difference."""
    candidate = compare(forebay, "equal.toml", seed, "--aa")["configurations"][1]
    ratio = candidate["ratio"]
    return ratio is not None and ratio["verdict"] == "same", in_words(candidate)


def slower(forebay, seed):
    """5 % more work: slower, with the measured factor."""
    candidate = compare(forebay, "slower.toml", seed)["configurations"][1]
    ratio = candidate["ratio"]
    return ratio is not None and ratio["verdict"] == "slower", in_words(candidate)


def leak(forebay, seed):
    """1 kB a request: the report shows its size (within a fifth), and no leak of the clean server."""
    clean, leaks = compare(forebay, "leak.toml", seed)["configurations"]
    found, other = leaks["memory_per_request"], clean["memory_per_request"]
    if found is None or other is None:
        return False, "too few bursts"
    is_right = found["leaks"] and 800 <= found["slope"] <= 1200 and not other["leaks"]
    low, high = found["ci95"]
    words = f"{found['slope']:.0f} bytes [{low:.0f}, {high:.0f}], clean {other['slope']:.0f} bytes"
    return is_right, words + (" accused" if other["leaks"] else "")


def lost(forebay, seed):
    """Kept connections that close on a request: each is a failure, nothing is resent, counts agree."""
    words = []
    for method in ["GET", "POST"]:
        with server("closes", 10) as url:
            code, json_ = bench(forebay, url, "-n", "1000", "-c", "10", "-X", method)
            with urllib.request.urlopen(url + "counts") as reply:
                counts = json.load(reply)
        requests = json_["requests"]
        lost_ = counts["received"] - counts["answered"]
        is_right = (
            code == 1
            and requests["sent"] == counts["received"]
            and requests["completed"] == counts["answered"]
            and requests["failed"] == lost_
            and requests["resent"] == 0
        )
        words.append(f"{method}: {lost_} lost, {requests['failed']} failed, {requests['resent']} resent")
        if not is_right:
            return False, f"{words[-1]}, exit code {code}, {counts}, {requests}"
    return True, "; ".join(words)


def wrong(forebay, seed):
    """Wrong bodies: the exit code is 1, all of them are counted, and the honest server is not accused."""
    report, ended = run(forebay, "wrong.toml", seed)
    honest, liar = report["configurations"]
    failed = liar["failures"]["check"]
    # 2,000 requests of a trial and the checks before and after it.
    is_right = ended.returncode == 1 and honest["failed"] == 0 and failed in range(78, 83)
    return is_right, f"{failed} wrong bodies, exit code {ended.returncode}"


def undecided(forebay, seed):
    """Many times slower in one round: the exit code is 4, neither success nor failure."""
    _, ended = run(forebay, "one-round.toml", seed, "--threshold", "5%")
    is_right = ended.returncode == 4 and "inconclusive: run " in ended.stderr
    return is_right, f"exit code {ended.returncode}"


def several(forebay, seed):
    """Several comparisons: every verdict agrees with its interval."""
    report = compare(forebay, "several.toml", seed)
    ratios = [each[kind] for each in report["configurations"] for kind in ["ratio", "cpu_ratio"]]
    ratios = [ratio for ratio in ratios if ratio and ratio["ci95"][1] is not None]

    def agrees(ratio):
        low, high = ratio["ci95"]
        is_apart = low > 1 or high < 1
        is_little = 0.98 <= ratio["mean"] <= 1.02
        return (ratio["verdict"] != "same") == (is_apart and not is_little)

    return all(map(agrees, ratios)), f"{len(ratios)} intervals"


def silent(forebay, seed):
    """A server that never answers: the exit code is 1, and the requests in flight are counted."""
    with server("mute") as url:
        code, json_ = bench(forebay, url, "-d", "0.3", "-c", "5")
    in_flight = json_["requests"]["in_flight"]
    return code == 1 and in_flight == 5, f"exit code {code}, {in_flight} in flight"


def overloaded(forebay, seed):
    """A rate that the server cannot reach: the exit code is 1. A rate that it can reach: 0."""
    with server("slow", 5) as url:
        code, json_ = bench(forebay, url, "-r", "1k", "-d", "2", "-c", "4")
    with server("slow", 5) as url:
        calm, _ = bench(forebay, url, "-r", "80", "-d", "2", "-c", "4")
    missed = json_["rate_shortfall"]
    return (code, calm) == (1, 0) and missed > 0.7, f"missed by {missed:.2f}, exit codes {code}, {calm}"


def interrupted(forebay, seed):
    """Ctrl-C and SIGTERM: the exit codes are 130 and 143, and the JSON says so."""
    codes = []
    for number in [signal.SIGINT, signal.SIGTERM]:
        with server("none") as url:
            command = [forebay, "bench", "--quiet", "--json", "-", url, "-d", "60"]
            # A script that runs in the background ignores Ctrl-C, and its children would too.
            heed = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heed)
            time.sleep(0.3)
            process.send_signal(number)
            output, _ = process.communicate(timeout=PATIENCE_S)
        codes.append(process.returncode)
        if not json.loads(output)["interrupted"]:
            return False, "the JSON does not say so"
    return codes == [130, 143], f"exit codes {codes}"


def costly(forebay, seed):
    """28 % more CPU time at the same rate: the headline says so."""
    report = compare(forebay, "costly.toml", seed)
    ratio = report["configurations"][1]["cpu_ratio"]
    said = " ".join(report["conclusions"])
    is_right = ratio["verdict"] == "more" and "times the CPU time per request" in said
    return is_right, ratio_in_words(ratio)


def missing(forebay, seed):
    """A configuration that cannot start: the exit code is 3, and the others are measured."""
    report, ended = run(forebay, "missing.toml", seed)
    one, broken, two = report["configurations"]
    is_right = (
        ended.returncode == 3
        and one["trials_counted"] == two["trials_counted"] == 2
        and broken["start_failure"] is not None
    )
    return is_right, f"exit code {ended.returncode}"


def loaded(forebay, seed):
    """5 % more work on a machine that four processes keep busy: found by CPU time, within 60 s."""
    with busy_machine():
        began = time.monotonic()
        candidate = compare(forebay, "loaded.toml", seed)["configurations"][1]
        took = time.monotonic() - began
    is_right = candidate["cpu_ratio"]["verdict"] == "more" and took < 60
    return is_right, f"{in_words(candidate)}, {took:.0f} s"


def loaded_equal(forebay, seed):
    """Two copies of one server on a busy machine: no difference, by rate or by CPU time."""
    with busy_machine():
        candidate = compare(forebay, "loaded.toml", seed, "--aa")["configurations"][1]
    verdicts = {candidate["ratio"]["verdict"], candidate["cpu_ratio"]["verdict"]}
    return verdicts == {"same"}, in_words(candidate)


def truth(forebay, seed):
    """Scripted servers of five protocols: each percentile agrees with the server's delays."""
    return scripted_truth.check_all(forebay, seed)


def find_rate(forebay, seed):
    """A server that answers 500 requests/s: --find-rate finds this capacity within 5 %."""
    with scripted_truth.server("http", "queue", seed) as (port, _):
        # With even arrivals, no request waits below the capacity.
        options = ["--find-rate", "p50<20ms", "--arrivals", "even", "-c", "64", "-d", "3"]
        code, json_ = bench(forebay, f"http://127.0.0.1:{port}/", *options, before=scripted_truth.be_punctual)
    found = json_["find_rate"]
    rate = found["rate"] or 0
    is_right = code == 0 and found["sure"] and abs(rate / 500 - 1) <= 0.05
    low, high = found["interval"]
    return is_right, f"{rate:.1f} requests/s [{low:.1f}, {high:.1f}], {len(found['steps'])} steps, exit code {code}"


@contextlib.contextmanager
def nginx(connections, workers=1):
    """Starts nginx for this many connections. Yields its URL."""
    with tempfile.TemporaryDirectory() as folder:
        port = http_server.free_port()
        with open(os.path.join(HERE, "nginx.conf"), encoding="utf-8") as file:
            text = file.read().replace("{port}", str(port)).replace("{tmp}", folder)
        text = text.replace("worker_connections 1024;", f"worker_connections {connections + 100};")
        text = text.replace("worker_processes 1;", f"worker_processes {workers};")
        text = f"worker_rlimit_nofile {min(connections + 200, FILES)};\n{text}"
        path = os.path.join(folder, "nginx.conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        process = subprocess.Popen([shutil.which("nginx") or "/usr/sbin/nginx", "-c", path], stderr=subprocess.DEVNULL)
        try:
            http_server.wait_for(port, process)
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.terminate()
            process.wait()


def watched_bench(forebay, *arguments):
    """Returns the exit code and the JSON of `forebay bench`, and its memory in kB at each half second."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        process = subprocess.Popen([forebay, "bench", "--quiet", "--json", path, *arguments])
        memory = []
        while process.poll() is None:
            with contextlib.suppress(OSError, IndexError), open(f"/proc/{process.pid}/status", encoding="utf-8") as file:
                memory.append(int(file.read().split("VmRSS:")[1].split()[0]))
            time.sleep(0.5)
        if not os.path.exists(path):
            sys.exit(f"bench ended with exit code {process.returncode}")
        with open(path, encoding="utf-8") as file:
            return process.returncode, json.load(file), memory


def many_requests(forebay, seed):
    """Ten million requests: none fails, and after a tenth the memory grows by less than half a byte for each request."""
    with nginx(1024) as url:
        code, json_, memory = watched_bench(forebay, url, "-n", "10M", "-c", "64")
    early, growth = memory[len(memory) // 10], max(memory) - memory[len(memory) // 10]
    is_right = code == 0 and json_["requests"]["completed"] == 10**7 and growth < 4500
    return is_right, f"{json_['rate_per_s']:.0f} requests/s, {early} kB after a tenth, {growth:+} kB later, exit code {code}"


def many_connections(forebay, seed):
    """20,000 connections with ten requests each: none fails. Two processes share them if `ulimit -Hn` is below 20,200."""
    count = 20_000
    shards = 1 if FILES >= count + 200 else 2
    options = ["-n", str(10 * count), "-c", str(count), "--timeout", "60s"]
    with nginx(count, shards) as url, concurrent.futures.ThreadPoolExecutor() as pool:
        runs = [
            pool.submit(watched_bench, forebay, url, *options, "--shard", f"{number}/{shards}")
            for number in range(1, shards + 1)
        ]
        results = [run.result() for run in runs]
    requests = [json_["requests"] for _, json_, _ in results]
    completed, failed = (sum(each[key] for each in requests) for key in ("completed", "failed"))
    codes = [code for code, _, _ in results]
    is_right = not any(codes) and completed == 10 * count and failed == 0
    each = sum(max(memory) for _, _, memory in results) / count
    rate = sum(json_["rate_per_s"] for _, json_, _ in results)
    words = f"{shards} processes, {rate:.0f} requests/s, {completed} completed, {failed} failed"
    return is_right, f"{words}, {each:.2f} kB of memory for each connection, exit codes {codes}"


# The experiments, and the number of correct runs required in twenty.
SETS = [
    (equal, 19),
    (slower, 18),
    (leak, 20),
    (lost, 20),
    (wrong, 20),
    (undecided, 20),
    (several, 20),
    (silent, 20),
    (overloaded, 20),
    (interrupted, 20),
    (costly, 20),
    (missing, 20),
    (loaded, 19),
    (loaded_equal, 19),
    (truth, 20),
    (find_rate, 19),
    (many_requests, 20),
    (many_connections, 20),
]
# These run only if they are named, once each: they take minutes, or need `ulimit -n`.
ONLY_NAMED = [many_requests, many_connections]


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    forebay, runs = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20
    names = sys.argv[3:]
    known = [each.__name__ for each, _ in SETS]
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"no such experiment: {', '.join(unknown)}; there are: {', '.join(known)}")
    began, is_enough = time.monotonic(), True
    for experiment, of_twenty in SETS:
        if (names or experiment in ONLY_NAMED) and experiment.__name__ not in names:
            continue
        required, right = runs * of_twenty // 20, 0
        print(f"\n{experiment.__name__}: {experiment.__doc__}", flush=True)
        for seed in range(1, runs + 1):
            is_right, words = experiment(forebay, seed)
            right += is_right
            print(f"  {seed:>2}  {'right' if is_right else 'WRONG'}  {words}", flush=True)
        print(f"  {right} of {runs} right, {required} required")
        is_enough = is_enough and right >= required
    print(f"\n{(time.monotonic() - began) / 60:.0f} minutes")
    sys.exit(not is_enough)


main()
