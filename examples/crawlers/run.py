#!/usr/bin/env python3
"""Ten visitors of a git browser (cgit) or a wiki (DokuWiki) while crawlers with 2,000 addresses fetch everything.

    run.py [--forebay PROGRAM] [--application cgit|dokuwiki] [--seconds N] [--rounds N] [--crawlers N]
           [--difficulty BITS]

Compares, in turns of N seconds: nginx with a rate limit for each address, Forebay without rules, with the same rate
limit, and with `challenge`. Needs nginx, and cgit, fcgiwrap and git, or dokuwiki and php-fpm. Everything listens on
loopback, and each client has an address of 127.0.0.0/8 of its own. Exit 1 if a visitor with `challenge` waits 30 s for
a page or gets no page at all.
"""
import argparse
import asyncio
import concurrent.futures
import contextlib
import glob
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
DOKUWIKI = '/usr/share/dokuwiki'
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


class Cgit:
    """The git browser, with a repository, in PROCESSES processes of CGI."""

    mark = b'cgit'
    needs = ['git', 'fcgiwrap', CGIT]

    def __init__(self, folder):
        commits = make_repository(folder)
        self.rc = os.path.join(folder, 'cgitrc')
        with open(self.rc, 'w') as file:
            file.write(f'virtual-root=/\nrepo.url=code.git\nrepo.path={folder}/code.git\n')
        # What links of cgit lead to. The first commits lack some of the files.
        ways = ['commit', 'diff', 'tree', 'log']
        files = ['', 'a.c', 'b.c', 'lib/c.c']
        self.pages = [f'/code.git/{way}/{name}?id={commit}' for commit in commits[:-50] for way in ways
                      for name in files]

    def nginx(self, server):
        """Returns the parameters of a location, and the commands that it needs."""
        fastcgi = f'127.0.0.1:{free_port()}'
        return (f'fastcgi_pass {fastcgi}; fastcgi_param SCRIPT_FILENAME {CGIT}; fastcgi_param PATH_INFO $uri;',
                [['fcgiwrap', '-c', str(PROCESSES), '-s', f'tcp:{fastcgi}']])

    def route(self, server):
        """Returns the answer of a route, and the commands that it needs."""
        return (f'cgi = {{ program = "{CGIT}", max_processes = {PROCESSES}, env = {{ CGIT_CONFIG = "{self.rc}" }} }}',
                [])


class DokuWiki:
    """The wiki, with linked pages, in PROCESSES processes of php-fpm."""

    mark = b'generator" content="DokuWiki'
    needs = [f'{DOKUWIKI}/doku.php']

    def __init__(self, folder):
        self.root = os.path.join(folder, 'wiki')
        shutil.copytree(DOKUWIKI, self.root, ignore=shutil.ignore_patterns('.htaccess'))
        conf, data = os.path.join(folder, 'conf/'), os.path.join(folder, 'data')
        shutil.copytree('/etc/dokuwiki', conf, ignore=shutil.ignore_patterns('*.auth.php', 'htaccess', 'apache.conf'))
        for name in ('attic', 'cache', 'index', 'locks', 'log', 'media', 'media_attic', 'media_meta', 'meta', 'tmp',
                     'pages/topic'):
            os.makedirs(os.path.join(data, name))
        with open(os.path.join(conf, 'local.php'), 'w') as file:
            file.write(f"<?php $conf['savedir'] = '{data}'; $conf['useacl'] = 0; $conf['updatecheck'] = 0;\n")
        with open(os.path.join(self.root, 'inc/preload.php'), 'w') as file:
            file.write(f"<?php define('DOKU_CONF', '{conf}'); define('DOKU_MAIN_CONF', '{conf}');\n")
        chance = random.Random(1)
        for number in range(COMMITS):
            with open(os.path.join(data, f'pages/topic/{number}.txt'), 'w') as file:
                file.write(f'====== Topic {number} ======\n' + ''.join(
                    f'===== Part {part} =====\n  * [[topic:{chance.randrange(COMMITS)}]] **and** //more//\n\n'
                    f'^ a ^ b ^\n| {part} | {chance.random()} |\n\n' for part in range(30)))
        for path, _, _ in os.walk(data):
            os.chmod(path, 0o777)
        self.pages = [f'/doku.php?id=topic:{number}{way}' for number in range(COMMITS)
                      for way in ('', '&do=edit', '&do=backlink', '&do=revisions', '&do=index')]

    def pool(self, server):
        socket_path = os.path.join(server.folder, 'php.sock')
        user = 'user = www-data\ngroup = www-data' if os.getuid() == 0 else ''
        file = server.write('fpm.conf', f'''
            [global]
            error_log = {server.folder}/fpm.log
            [www]
            {user}
            listen = {socket_path}
            listen.mode = 0666
            pm = static
            pm.max_children = {PROCESSES}
            '''.replace('            ', ''))
        program = sorted(glob.glob('/usr/sbin/php-fpm*'))[-1]
        return socket_path, [[program, '--nodaemonize', '--allow-to-run-as-root', '--fpm-config', file]]

    def nginx(self, server):
        path, commands = self.pool(server)
        return (f'root {self.root}; fastcgi_pass unix:{path}; fastcgi_param SCRIPT_NAME $uri; '
                f'fastcgi_param SCRIPT_FILENAME {self.root}$uri; fastcgi_param REQUEST_URI $request_uri;', commands)

    def route(self, server):
        path, commands = self.pool(server)
        return f'fastcgi = {{ to = "unix:{path}", root = "{self.root}", max_connections = {PROCESSES} }}', commands


def free_port():
    with socket.socket() as found:
        found.bind(('127.0.0.1', 0))
        return found.getsockname()[1]


class Server:
    """One way to serve an application: its processes and its port."""

    def __init__(self, name, folder, application, start):
        self.name, self.application, self.port = name, application, free_port()
        self.folder = os.path.join(folder, re.sub(r'\W+', '-', name))
        os.mkdir(self.folder)
        os.chmod(self.folder, 0o755)
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
    location, commands = server.application.nginx(server)
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
                    {location} fastcgi_read_timeout {LIMIT * 2};
                    fastcgi_param REMOTE_ADDR $remote_addr; fastcgi_param SERVER_PROTOCOL $server_protocol;
                    fastcgi_param QUERY_STRING $args; fastcgi_param REQUEST_METHOD $request_method;
                    fastcgi_param HTTP_HOST $http_host; fastcgi_param SERVER_NAME x; fastcgi_param SERVER_PORT 80;
                }}
            }}
        }}''')
    return [*commands, ['nginx', '-c', file]]


def forebay(program, keys):
    def start(server):
        answer, commands = server.application.route(server)
        file = server.write('site.toml', f'''
            [log]
            level = "error"
            [[site]]
            listen = "127.0.0.1:{server.port}"
            [[site.route]]
            path = "/*"
            {answer}
            {keys}''')
        return [*commands, [program, 'serve', file]]
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

    async def read(self, port, target, mark):
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
        return status == 200 and mark in body, bool(task)


async def turn(server, seconds, crawlers, solvers, result):
    """Lets everybody read for some seconds. Adds what happened to `result`."""
    all_pages, mark = server.application.pages, server.application.mark
    end = time.monotonic() + seconds
    chance = random.Random(2)

    async def visit(number):
        visitor = Visitor(f'127.0.0.{10 + number}', solvers)
        await asyncio.sleep(number / VISITORS)
        while time.monotonic() < end:
            start = time.monotonic()
            try:
                ok, works = await asyncio.wait_for(visitor.read(server.port, chance.choice(all_pages), mark), LIMIT)
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
            result.got += status == 200 and mark in body and b'data-task' not in body
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
    parser.add_argument('--application', choices=['cgit', 'dokuwiki'], default='cgit')
    parser.add_argument('--seconds', type=float, default=15)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--crawlers', type=int, default=256, help='requests of crawlers at the same time')
    parser.add_argument('--difficulty', type=int, default=16)
    options = parser.parse_args()
    kind = {'cgit': Cgit, 'dokuwiki': DokuWiki}[options.application]
    missing = [name for name in ['nginx', *kind.needs] if not shutil.which(name) and not os.path.exists(name)]
    if missing:
        sys.exit(f'missing: {", ".join(missing)} (Debian: apt install nginx cgit fcgiwrap git dokuwiki php-fpm)')
    program = os.path.abspath(options.forebay)
    with concurrent.futures.ProcessPoolExecutor(2) as solvers, tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        application = kind(folder)
        limit = 'rate_limit = { rate = "2/s", burst = 10 }'
        ways = {'nginx, limit_req': nginx, 'Forebay, no rules': forebay(program, ''),
                'Forebay, rate_limit': forebay(program, limit),
                'Forebay, challenge': forebay(program, f'challenge = {{ difficulty = {options.difficulty} }}')}
        servers, results = [], {name: Result() for name in ways}
        try:
            servers = [Server(name, folder, application, start) for name, start in ways.items()]
            time.sleep(2)
            for number in range(options.rounds):
                for server in servers if number % 2 == 0 else reversed(servers):
                    asyncio.run(turn(server, options.seconds, options.crawlers, solvers, results[server.name]))
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
