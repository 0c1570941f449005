"""The report in Markdown."""

import os
import subprocess
import time

from .client import KINDS


class Report:
    """What was expected and seen, in the order of the scenarios."""

    def __init__(self):
        self.lines, self.missed = [], []

    def heading(self, text):
        self.lines += ["", f"## {text}", ""]

    def text(self, text):
        self.lines += [text, ""]

    def expect(self, what, holds, seen=""):
        """Notes an expectation, and if it holds."""
        self.lines.append(f"- {'holds' if holds else '**FAILS**'}: {what}{f' ({seen})' if seen != '' else ''}")
        if not holds:
            self.missed.append(f"{what} ({seen})")

    def loads(self, results):
        """Adds a table of the outcomes of the loads' requests."""
        self.lines += ["", "| load | completed | failed | " + " | ".join(KINDS) + " | other than 200 | resent |",
                       "|---" * (len(KINDS) + 5) + "|"]
        for result in results:
            kinds = " | ".join(str(result.failures[kind]) for kind in KINDS)
            self.lines.append(f"| {result.name} | {result.completed:,} | {result.failed} | {kinds} | {result.other} | "
                              f"{result.resent} |")
        self.lines.append("")

    def whole(self, binary, commands):
        outcome = f"Expectations that fail: {len(self.missed)}" if self.missed else "All expectations hold"
        head = ["# A fleet of four nodes", "", f"{outcome}. {time.strftime('%d %B %Y, %H:%M UTC', time.gmtime())}.",
                "", "| part | version |", "|---|---|", *(f"| {part} | {value} |" for part, value in machine(binary)),
                "", "Loads, until the events of a scenario are over:", "", *(f"    {command}" for command in commands)]
        return "\n".join(head + self.lines) + "\n"


def first_line(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout.strip().split("\n")[0]


def machine(binary):
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    system = os.uname()
    kind = "debug" if "/debug/" in binary else "release" if "/release/" in binary else os.path.basename(binary)
    return [("machine", f"{os.cpu_count()} processors, {models[0] if models else system.machine}"),
            ("kernel", f"{system.sysname} {system.release}"),
            ("Forebay", f"{first_line(binary, '--version')} ({kind})"),
            ("HAProxy", first_line("haproxy", "-v")),
            ("Redis", first_line("redis-server", "--version")),
            ("Pebble", first_line("dpkg-query", "-W", "pebble"))]
