#!/usr/bin/env python3
"""Kills, reloads and replaces an application's workers under load, and reports what clients saw.

    examples/abuse/kills.py [FOREBAY] [KIND] [REQUESTS]

FOREBAY is the program (target/release/forebay). KIND is wsgi or psgi. REQUESTS is their number (500,000) while 40
workers are killed one after the other with SIGKILL. Then the same load runs while Forebay gets SIGHUP ten times, each
second time with other settings of the application, and while SIGUSR2 replaces Forebay ten times.

Exit code 1: more requests failed than workers were killed, one failed in the other loads, or the application ran one
twice.
"""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

KILLS = 40
ROUNDS = 10
PATIENCE = 60

# Each worker notes the numbers of the requests that it begins.
APPS = {
    'wsgi': ('app.py', '''
import os
notes = os.open('%s/%d' % (os.environ['NOTES'], os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
def application(environ, start_response):
    os.write(notes, environ['QUERY_STRING'].encode() + b'\\n')
    start_response('200 OK', [('Content-Type', 'text/plain')])
    return [b'x' * 4000]
'''),
    'psgi': ('app.psgi', '''
open my $notes, '>>', "$ENV{NOTES}/$$" or die $!;
sub { syswrite $notes, "$_[0]{QUERY_STRING}\\n"; [200, ['Content-Type', 'text/plain'], ['x' x 4000]] }
'''),
}
CONFIGURATION = '''
[log]
access = "off"
[[site]]
listen = ["127.0.0.1:%(port)d"]
[[site.route]]
path = "/*"
app = "main"
[app.main]
kind = "%(kind)s"
%(module)s
dir = "%(folder)s"
workers = 4
env = { NOTES = "%(notes)s", ROUND = "%(round)d" }
'''


class Run:
    def __init__(self, program, kind, folder):
        self.program, self.kind, self.folder = program, kind, folder
        with socket.socket() as probe:
            probe.bind(('127.0.0.1', 0))
            self.port = probe.getsockname()[1]
        name, text = APPS[kind]
        (folder / name).write_text(text)
        (folder / 'numbers.csv').write_text('unused\n1\n')
        self.log = folder / 'log'
        self.configure(0)
        with open(self.log, 'wb') as log:
            self.process = subprocess.Popen([program, 'serve', folder / 'site.toml'], stderr=log)
        self.pid = self.process.pid
        self.wait('serving http')

    def configure(self, round):
        module = 'module = "app:application"' if self.kind == 'wsgi' else 'file = "app.psgi"'
        notes = self.folder / 'notes'
        notes.mkdir(exist_ok=True)
        (self.folder / 'site.toml').write_text(CONFIGURATION % {
            'port': self.port, 'kind': self.kind, 'module': module, 'folder': self.folder, 'notes': notes,
            'round': round})

    def wait(self, pattern, count=1):
        """Waits until the log has so many matches, and returns the last one."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            found = re.findall(pattern, self.log.read_text())
            if len(found) >= count:
                return found[-1]
            time.sleep(0.02)
        sys.exit(f'{pattern!r} is not in the log:\n{self.log.read_text()}')

    def workers(self):
        """Returns the ids of the workers that have loaded the application."""
        found = []
        for task in os.listdir(f'/proc/{self.pid}/task'):
            children = pathlib.Path(f'/proc/{self.pid}/task/{task}/children').read_text().split()
            found += [int(child) for child in children if (self.folder / 'notes' / child).exists()]
        return found

    def load(self, what, requests, disturb):
        """Sends requests and calls `disturb(i)` at equal distances. Returns the number of failures."""
        for file in (self.folder / 'notes').iterdir():
            os.truncate(file, 0)
        result = self.folder / 'result.json'
        bench = subprocess.Popen(
            [self.program, 'bench', '--quiet', '--allow-failures', '-c', '16', '-n', str(requests), '--json', result,
             '--values', self.folder / 'numbers.csv', 'http://127.0.0.1:%d/?{n}' % self.port],
            stdout=subprocess.DEVNULL)
        count, whole = 0, sum(len(str(n)) + 1 for n in range(requests))
        while bench.poll() is None:
            time.sleep(0.02)
            if count < disturb.times and self.noted() >= whole * (count + 0.5) / disturb.times:
                disturb(count)
                count += 1
        found = json.loads(result.read_text())['requests']
        failed = found['failed'] + sum(n for status, n in found['status'].items() if status >= '400')
        numbers = [line for file in (self.folder / 'notes').iterdir() for line in file.read_bytes().split()]
        twice = len(numbers) - len(set(numbers))
        print(f'{self.kind}, {count} {what}: {requests:,} requests, {failed} failed, {twice} ran twice, '
              f'{found["resent"]} sent again by the client')
        return count == disturb.times and failed <= disturb.allowed and twice <= found['resent']

    def noted(self):
        """Returns the number of bytes that the workers have noted."""
        return sum(file.stat().st_size for file in (self.folder / 'notes').iterdir())


def disturbance(times, allowed):
    def mark(function):
        function.times, function.allowed = times, allowed
        return function
    return mark


def run(program, kind, requests, folder):
    server = Run(program, kind, folder)

    @disturbance(KILLS, KILLS)
    def kill(count):
        workers = server.workers()
        if workers:
            os.kill(workers[count % len(workers)], signal.SIGKILL)

    @disturbance(ROUNDS, 0)
    def reload(count):
        server.configure(count // 2 + 1)
        os.kill(server.pid, signal.SIGHUP)
        server.wait('serving by the configuration as it is now', count + 1)

    @disturbance(ROUNDS, 0)
    def replace(count):
        os.kill(server.pid, signal.SIGUSR2)
        server.pid = int(server.wait(r'process (\d+) serves from now on', count + 1))
        server.wait('the old process has ended', count + 1)

    good = [server.load('kills of workers', requests, kill),
            server.load('reloads', requests, reload),
            server.load('replacements', requests, replace)]
    os.kill(server.pid, signal.SIGTERM)
    while pathlib.Path(f'/proc/{server.pid}').exists():
        time.sleep(0.05)
    return all(good)


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / '../../target/release/forebay'
    kinds = sys.argv[2:3] or list(APPS)
    requests = int(sys.argv[3]) if len(sys.argv) > 3 else 500_000
    good = []
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            good.append(run(pathlib.Path(program).resolve(), kind, requests, pathlib.Path(folder).resolve()))
    sys.exit(not all(good))


main()
