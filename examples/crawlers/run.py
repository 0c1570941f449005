#!/usr/bin/env python3
"""Ten visitors of a git browser (cgit) while crawlers with 2,000 addresses fetch everything.

    run.py [--forebay PROGRAM] [--seconds N] [--rounds N] [--crawlers N] [--difficulty BITS]

Compares, in turns of N seconds: nginx with fcgiwrap and a rate limit for each address, Forebay without rules, with the
same rate limit, and with `challenge`. Needs cgit, fcgiwrap, git and nginx. Everything listens on loopback, and each
client has an address of 127.0.0.0/8 of its own. Exit 1 if a visitor waits 30 s for a page or gets no page at all.
"""
import argparse
import asyncio
import concurrent.futures
import contextlib
import hashlib
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

CGIT = '/usr/lib/cgit/cgit.cgi'
LIMIT = 30
COMMITS = 300
VISITORS = 10
BROWSER = 'Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0'
PROCESSES = 4


def make_repository(folder):
    """Writes a repository with COMMITS commits in files of some hundred lines."""
    path = os.path.join(folder, 'code.git')
    chance = random.Random(1)
    stream = []
    lines = {name: [f'line {n} of {name}' for n in range(400)] for name in ('a.c', 'b.c', 'lib/c.c', 'lib/d.c')}
    for commit in range(COMMITS):
        name = chance.choice(sorted(lines))
        lines[name][chance.randrange(400)] = f'changed by commit {commit}'
        text = '\n'.join(lines[name]) + '\n'
        message = f'Change {name}, number {commit}'
        stream.append(f'commit refs/heads/master\ncommitter A <a@example.org> {1700000000 + commit * 3600} +0000\n'
                      f'data {len(message)}\n{message}\nM 100644 inline {name}\ndata {len(text)}\n{text}\n')
    subprocess.run(['git', 'init', '-q', '--bare', '-b', 'master', path], check=True)
    subprocess.run(['git', '-C', path, 'fast-import', '--quiet'], input=''.join(stream).encode(), check=True)
    listed = subprocess.run(['git', '-C', path, 'rev-list', 'master'], check=True, capture_output=True, text=True)
    return listed.stdout.split()


def pages(commits):
    """What links of cgit lead to. The first commits lack some of the files."""
    ways = ['commit', 'diff', 'tree', 'log']
    files = ['', 'a.c', 'b.c', 'lib/c.c']
    return [f'/code.git/{way}/{name}?id={commit}' for commit in commits[:-50] for way in ways for name in files]


def free_port():
    with socket.socket() as found:
        found.bind(('127.0.0.1', 0))
        return found.getsockname()[1]


class Server:
    """One way to serve cgit: its processes and its port."""

    def __init__(self, name, folder, start):
        self.name, self.port = name, free_port()
        self.folder = os.path.join(folder, re.sub(r'\W+', '-', name))
        os.mkdir(self.folder)
        environment = dict(os.environ, CGIT_CONFIG=os.path.join(folder, 'cgitrc'))
        self.processes = [subprocess.Popen(command, env=environment, start_new_session=True)
                          for command in start(self)]

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, 'w') as file:
            file.write(text)
        return path

    def stop(self):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes:
            process.wait()


def nginx(server):
    fastcgi = f'127.0.0.1:{free_port()}'
    file = server.write('nginx.conf', f'''
        daemon off; worker_processes 2; pid {server.folder}/pid; error_log {server.folder}/error.log;
        events {{ worker_connections 1024; }}
        http {{
            access_log off; limit_req_zone $binary_remote_addr zone=each:10m rate=2r/s;
            client_body_temp_path {server.folder}/t1; proxy_temp_path {server.folder}/t2;
            fastcgi_temp_path {server.folder}/t3; uwsgi_temp_path {server.folder}/t4; scgi_temp_path {server.folder}/t5;
            server {{
                listen 127.0.0.1:{server.port} backlog=4096; limit_req zone=each burst=10 nodelay;
                location / {{
                    fastcgi_pass {fastcgi}; fastcgi_read_timeout {LIMIT * 2};
                    fastcgi_param SCRIPT_FILENAME {CGIT}; fastcgi_param PATH_INFO $uri;
                    fastcgi_param QUERY_STRING $args; fastcgi_param REQUEST_METHOD $request_method;
                    fastcgi_param HTTP_HOST $http_host; fastcgi_param SERVER_NAME x; fastcgi_param SERVER_PORT 80;
                }}
            }}
        }}''')
    return [['fcgiwrap', '-c', str(PROCESSES), '-s', f'tcp:{fastcgi}'], ['nginx', '-c', file]]


def forebay(program, keys):
    def start(server):
        rc = os.path.join(os.path.dirname(server.folder), 'cgitrc')
        file = server.write('site.toml', f'''
            [log]
            level = "error"
            [[site]]
            listen = "127.0.0.1:{server.port}"
            [[site.route]]
            path = "/*"
            cgi = {{ program = "{CGIT}", max_processes = {PROCESSES}, env = {{ CGIT_CONFIG = "{rc}" }} }}
            {keys}''')
        return [[program, 'serve', file]]
    return start


async def fetch(port, address, target, cookie='', agent='crawler/1.0'):
    """Returns the status, the fields and the body of one page."""
    reader, writer = await asyncio.open_connection('127.0.0.1', port, local_addr=(address, 0))
    try:
        cookies = f'Cookie: {cookie}\r\n' if cookie else ''
        writer.write(f'GET {target} HTTP/1.1\r\nHost: git.example\r\nUser-Agent: {agent}\r\nAccept: text/html\r\n'
                     f'{cookies}Connection: close\r\n\r\n'.encode())
        head, _, body = (await reader.read(-1)).partition(b'\r\n\r\n')
    finally:
        writer.close()
    lines = head.decode('latin-1').split('\r\n')
    fields = dict(line.lower().split(':', 1)[:1] + [line.split(':', 1)[1].strip()] for line in lines[1:])
    return int(lines[0].split()[1]), fields, body


def solve(task, bits):
    """Does the work of the script in the page."""
    for number in range(1 << 30):
        answer = f'{task}.{number}'
        if int.from_bytes(hashlib.sha256(answer.encode()).digest()[:4], 'big') >> (32 - bits) == 0:
            return answer


class Visitor:
    """Somebody who reads a page every second."""

    def __init__(self, address, solvers):
        self.address, self.solvers, self.cookie = address, solvers, ''

    async def read(self, port, target):
        """Returns true if the page came, and true if the visitor had to solve a challenge first."""
        status, fields, body = await fetch(port, self.address, target, self.cookie, BROWSER)
        task = re.search(rb'data-task="([^"]+)"', body)
        if status == 200 and task:
            bits = int(re.search(rb'data-bits="(\d+)"', body).group(1))
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(self.solvers, solve, task.group(1).decode(), bits)
            path = f'{target}&forebay-challenge={answer}'
            status, fields, body = await fetch(port, self.address, path, self.cookie, BROWSER)
            self.cookie = fields.get('set-cookie', '').split(';')[0]
            status, fields, body = await fetch(port, self.address, target, self.cookie, BROWSER)
        return status == 200 and b'cgit' in body, bool(task)


async def turn(server, all_pages, seconds, crawlers, solvers, result):
    """Lets everybody read for some seconds. Adds what happened to `result`."""
    end = time.monotonic() + seconds
    chance = random.Random(2)

    async def visit(number):
        visitor = Visitor(f'127.0.0.{10 + number}', solvers)
        await asyncio.sleep(number / VISITORS)
        while time.monotonic() < end:
            start = time.monotonic()
            try:
                ok, works = await asyncio.wait_for(visitor.read(server.port, chance.choice(all_pages)), LIMIT)
            except (asyncio.TimeoutError, OSError, ValueError, IndexError) as error:
                ok, works = False, False
                print(f'{server.name}: {error!r}', file=sys.stderr)
            took = time.monotonic() - start
            result.failed += not ok
            (result.first if works else result.later).append(took)
            await asyncio.sleep(max(0, 1 - took))

    async def crawl():
        while time.monotonic() < end:
            number = chance.randrange(2000)
            address = f'127.{1 + number // 250}.0.{1 + number % 250}'
            try:
                status, _, body = await asyncio.wait_for(fetch(server.port, address, chance.choice(all_pages)), LIMIT)
            except (asyncio.TimeoutError, OSError, ValueError, IndexError):
                status, body = 0, b''
            result.asked += 1
            result.got += status == 200 and b'cgit' in body and b'data-task' not in body
            if status != 200:
                await asyncio.sleep(0.05)

    await asyncio.gather(*(visit(n) for n in range(VISITORS)), *(crawl() for _ in range(crawlers)))


class Result:
    """What happened in all turns of a server: times of pages in seconds, and numbers of pages."""

    def __init__(self):
        self.first, self.later = [], []
        self.failed = self.asked = self.got = 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--forebay', default='target/release/forebay')
    parser.add_argument('--seconds', type=float, default=15)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--crawlers', type=int, default=256, help='requests of crawlers at the same time')
    parser.add_argument('--difficulty', type=int, default=16)
    options = parser.parse_args()
    missing = [name for name in ('git', 'nginx', 'fcgiwrap', CGIT) if not shutil.which(name)]
    if missing:
        sys.exit(f'missing: {", ".join(missing)} (Debian: apt install cgit fcgiwrap git nginx)')
    program = os.path.abspath(options.forebay)
    with concurrent.futures.ProcessPoolExecutor(2) as solvers, tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        commits = make_repository(folder)
        with open(os.path.join(folder, 'cgitrc'), 'w') as file:
            file.write(f'virtual-root=/\nrepo.url=code.git\nrepo.path={folder}/code.git\n')
        limit = 'rate_limit = { rate = "2/s", burst = 10 }'
        ways = {'nginx, limit_req': nginx, 'Forebay, no rules': forebay(program, ''),
                'Forebay, rate_limit': forebay(program, limit),
                'Forebay, challenge': forebay(program, f'challenge = {{ difficulty = {options.difficulty} }}')}
        servers, results = [], {name: Result() for name in ways}
        try:
            servers = [Server(name, folder, start) for name, start in ways.items()]
            time.sleep(2)
            for number in range(options.rounds):
                for server in servers if number % 2 == 0 else reversed(servers):
                    asyncio.run(turn(server, pages(commits), options.seconds, options.crawlers, solvers,
                                     results[server.name]))
        finally:
            for server in servers:
                server.stop()
    print('| server | pages | median, s | 99 %, s | with a challenge: median, s | failed | crawlers, requests/s | their pages/s |')
    print('|---|---|---|---|---|---|---|---|')
    seconds = options.seconds * options.rounds
    for name, result in results.items():
        later, first = sorted(result.later), statistics.median(result.first) if result.first else 0
        print(f'| {name} | {len(later)} | {statistics.median(later):.2f} | {later[int(len(later) * 0.99)]:.2f} '
              f'| {first:.2f} | {result.failed} | {result.asked / seconds:.0f} | {result.got / seconds:.0f} |')
    sys.exit(results['Forebay, challenge'].failed > 0)


main()
