#!/usr/bin/env python3
"""Compares the counts of load generators with those of a server that fails in known ways.

python3 examples/load-generators/failures.py FOREBAY [--out failures.md] [FAULT...]

Each tool sends 2,000 requests over 10 connections (wrk: for two seconds) to `failing.py`, once for each fault. Prints
the table and writes it to a file. Exit code 1 if a count of Forebay is wrong.
"""

import argparse
import json
import os
import sys
import tempfile
import urllib.request
from dataclasses import dataclass

import tools
from tools import HERE, Load

sys.path.append(os.path.join(HERE, ".."))
import http_server

CONNECTIONS, REQUESTS = 10, 2000


@dataclass
class Fault:
    """A fault, and the requests from one fault to the next."""

    name: str
    every: int
    words: str


FAULTS = [
    Fault("none", 1, "no fault"),
    Fault("reset", 50, "resets the connection"),
    Fault("close", 50, "closes the connection without a reply"),
    Fault("idle", 50, "closes a kept connection after the reply"),
    Fault("status", 50, "replies with the status 500"),
    Fault("short", 50, "closes the connection after half of the body"),
    Fault("silence", 100, "never replies"),
    Fault("body", 50, "sends another body of the same length"),
]


def verdict(tool, fault, counts, report, ended):
    """Compares the counts of the server with the report of a tool. Returns the differences in words."""
    if ended.hung:
        return [f"had not ended after {tools.PATIENCE_S} s"]
    received, right = counts["received"], counts["right"]
    faults = received - right
    found = failures_found(fault, report)
    # A tool that ends by time does not report the requests that are active then.
    slack = 0 if tool.counts_requests else CONNECTIONS
    words = []
    if tool.counts_requests:
        if report.good + report.errors + report.bad_status < REQUESTS:
            words.append(f"ends after {received:,} requests")
        elif received < REQUESTS:
            words.append(f"sends {received:,} of the {REQUESTS:,} requests")
        elif received > REQUESTS:
            words.append(f"sends {received - REQUESTS:,} of the requests again, and does not report it")
    # A request that was silent for longer than the time limit was not active by chance.
    if found < faults - (0 if fault.name == "silence" else slack):
        words.append(f"misses {faults - found:,} of {faults:,} failures")
    elif found > faults + slack:
        words.append(f"reports {found:,} failures instead of {faults:,}")
    elif report.good < right - slack:
        words.append(f"misses {right - report.good:,} right replies")
    if report.good > right + slack:
        words.append(f"counts {report.good - right:,} failures as success")
    return words


def failures_found(fault, report):
    return report.bad_status if fault.name == "status" else report.errors


def measure(tool, fault, home):
    """Runs a tool against a fault. Returns a row of the table, and true if the counts agree."""
    with http_server.running(os.path.join(HERE, "failing.py"), fault.name, fault.every) as url:
        scenario = os.path.join(HERE, "bodies.toml") if fault.name == "body" else None
        requests = REQUESTS if tool.counts_requests else None
        load = Load(url, CONNECTIONS, requests, 2, has_limit=True, scenario=scenario)
        ended = tools.run([tool.program, *tool.command(load)], home=home)
        with urllib.request.urlopen(url + "counts") as reply:
            counts = json.load(reply)
    try:
        report = tool.read(ended.output)
    except (ValueError, KeyError):
        report = tools.Report(good=0)
    words = verdict(tool, fault, counts, report, ended)
    numbers = [counts["received"], counts["received"] - counts["right"]]
    numbers += [report.good, failures_found(fault, report)]
    cells = [tool.name, *(f"{number:,}" for number in numbers), str(ended.code), "; ".join(words) or "agrees"]
    return f"| {' | '.join(cells)} |", not words


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("forebay")
    parser.add_argument("faults", nargs="*", metavar="FAULT")
    parser.add_argument("--out", default="failures.md")
    options = parser.parse_intermixed_args()
    there, missing = tools.installed(options.forebay)
    lines, is_exact = [], True
    with tempfile.TemporaryDirectory() as home:
        for fault in FAULTS:
            if options.faults and fault.name not in options.faults:
                continue
            often = "" if fault.name == "none" else f", at each {fault.every}th request"
            lines += [f"The server {fault.words}{often}:" if often else "The server has no fault:", ""]
            lines += ["| tool | received | failures | success reported | failures reported | exit code | verdict |"]
            lines += ["|---|---:|---:|---:|---:|---:|---|"]
            for tool in there:
                row, agrees = measure(tool, fault, home)
                is_exact = is_exact and (agrees or tool.name != "forebay")
                lines.append(row)
                print(row, file=sys.stderr, flush=True)
            lines.append("")
    lines += [f"{', '.join(tools.versions(there))}. {tools.missing_in_words(missing)}".strip()]
    text = "\n".join(lines) + "\n"
    print(text)
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(text)
    sys.exit(not is_exact)


if __name__ == "__main__":
    main()
