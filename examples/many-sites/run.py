#!/usr/bin/env python3
"""Start, memory and look-up of a host with 1, 1,000 and 10,000 sites, each with a directory of its own.

    run.py [--forebay PROGRAM] [--sites N,N,...] [--seconds N] [--check]

Makes the directories, starts `forebay serve` on loopback with `hosts_from`, and waits for the first reply. Memory is
that of the gateway's process, beside the one with the fewest sites. The look-up is measured by requests for hosts in
random order over one connection, in turns. With --check, exits with 1 if 10,000 sites start in more than 2 s, need
more than 8 kB each, or cost more than a fifth more time for each request than one site.
"""
import argparse
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

CONFIGURATION = '''
[server]
threads = 1
[log]
level = "error"
[[site]]
listen = "127.0.0.1:{port}"
hosts_from = "{folder}/*/htdocs"
[[site.route]]
files = "{folder}/{{host}}/htdocs"
'''


def free_port():
    with socket.socket() as found:
        found.bind(('127.0.0.1', 0))
        return found.getsockname()[1]


class Server:
    """A server with some sites."""

    def __init__(self, program, folder, count):
        self.hosts = [f'site-{number}.example' for number in range(count)]
        self.port = free_port()
        root = os.path.join(folder, str(count))
        for host in self.hosts:
            os.makedirs(os.path.join(root, host, 'htdocs'))
            with open(os.path.join(root, host, 'htdocs', 'index.html'), 'w') as page:
                page.write(host)
        file = os.path.join(folder, f'{count}.toml')
        with open(file, 'w') as text:
            text.write(CONFIGURATION.format(port=self.port, folder=root))
        start = time.monotonic()
        self.process = subprocess.Popen([program, 'serve', file], start_new_session=True)
        while True:
            try:
                self.connection = socket.create_connection(('127.0.0.1', self.port))
                break
            except ConnectionRefusedError:
                if self.process.poll() is not None or time.monotonic() > start + 120:
                    sys.exit(f'{program} does not serve {count} sites')
                time.sleep(0.005)
        self.get(self.hosts[-1])
        self.start = time.monotonic() - start
        with open(f'/proc/{self.process.pid}/status') as status:
            self.memory = next(int(line.split()[1]) for line in status if line.startswith('VmRSS')) * 1024
        self.took = []

    def get(self, host):
        self.connection.sendall(f'GET / HTTP/1.1\r\nHost: {host}\r\n\r\n'.encode())
        reply = b''
        while not reply.endswith(host.encode()):
            piece = self.connection.recv(65536)
            if not piece:
                sys.exit(f'no page of {host}: {reply!r}')
            reply += piece

    def turn(self, seconds):
        """Adds the time of a request, in microseconds of CPU of the server. The files are in its memory by then."""
        hosts = random.Random(1).sample(self.hosts, min(len(self.hosts), 500))
        for host in hosts:
            self.get(host)
        before, count, end = self.cpu(), 0, time.monotonic() + seconds
        while time.monotonic() < end:
            for host in hosts[:100]:
                self.get(host)
                count += 1
        self.took.append((self.cpu() - before) / count * 1e6)

    def cpu(self):
        with open(f'/proc/{self.process.pid}/schedstat') as stat:
            own = int(stat.read().split()[0])
        threads = 0
        for thread in os.listdir(f'/proc/{self.process.pid}/task'):
            with open(f'/proc/{self.process.pid}/task/{thread}/schedstat') as stat:
                threads += int(stat.read().split()[0])
        return max(own, threads) / 1e9

    def stop(self):
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--forebay', default='forebay')
    parser.add_argument('--sites', default='1,1000,10000')
    parser.add_argument('--seconds', type=float, default=1)
    parser.add_argument('--check', action='store_true')
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        servers = [Server(arguments.forebay, folder, int(count)) for count in arguments.sites.split(',')]
        try:
            for _ in range(5):
                for server in servers:
                    server.turn(arguments.seconds)
        finally:
            for server in servers:
                server.stop()
    first, last = servers[0], servers[-1]
    print(f'{"sites":>7} {"start, s":>9} {"memory, MB":>11} {"kB a site":>10} {"us of CPU a request":>20}')
    for server in servers:
        more = len(server.hosts) - len(first.hosts)
        each = f'{(server.memory - first.memory) / more / 1000:.1f}' if more else '-'
        took = statistics.median(server.took)
        print(f'{len(server.hosts):>7} {server.start:>9.2f} {server.memory / 1e6:>11.1f} {each:>10} {took:>20.1f}')
    each = (last.memory - first.memory) / max(1, len(last.hosts) - len(first.hosts))
    ratio = statistics.median(last.took) / statistics.median(first.took)
    if arguments.check and (last.start > 2 or each > 8000 or ratio > 1.2):
        sys.exit(1)


if __name__ == '__main__':
    main()
