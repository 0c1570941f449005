#!/usr/bin/env python3
"""Serves a site of papers under nginx and Apache with mod_perl, and under Forebay, and compares both.

    run.py [--forebay PROGRAM] [--measure TIME]

Starts a PostgreSQL, nginx in front of Apache with mod_perl, and Forebay with what `forebay import` makes of the same
configurations. Sends the same requests to both, directly and through the front, and prints each answer that differs.
Exit 1 if any does. With --measure, `forebay compare` then loads both in turns, for this time per server and turn.
"""
import argparse
import atexit
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse

HERE = os.path.dirname(os.path.abspath(__file__))
MODULES = '/usr/lib/apache2/modules'
LIMIT = 60
HOST = 'papers.example'
FORM = {'Content-Type': 'application/x-www-form-urlencoded'}
# Of an answer. Pages of errors and redirects are the server's own.
FIELDS = ['content-type', 'location', 'set-cookie', 'last-modified', 'x-papers', 'x-paper', 'cache-control', 'pragma',
          'allow', 'content-encoding']

TABLES = """
CREATE TABLE papers (handle text PRIMARY KEY, title text NOT NULL, year integer NOT NULL);
CREATE TABLE authors (handle text REFERENCES papers, name text);
INSERT INTO papers SELECT format('wp-%s', lpad(n::text, 3, '0')), format('Growth in region %s', n), 1990 + n % 18
    FROM generate_series(1, 30) n;
INSERT INTO papers VALUES ('ru-001', 'Экономика & наука', 2007), ('ru-002', 'Only <one> title', 2006);
"""


def rows():
    """The requests: method, path, body, fields."""
    for path in ['/', '/index.html', '/images/logo.gif', '/images/none.gif', '/none', '/perl/time.cgi',
                 '/perl/time.cgi?name=A+%26+B', '/perl/tables.cgi', '/perl/none.cgi', '/perl/moved.cgi?go=1',
                 '/perl/moved.cgi?what=%3Cb%3E', '/perl/time.cgi/more?name=x', '/papers', '/papers/', '/papers/wp-007',
                 '/papers/ru-001', '/papers/none', '/papers/?title=region', '/papers/?title=%27', '/papers/a/b',
                 '/mason/index.html', '/mason/index.html?title=region+1', '/mason/index.html?title=Only',
                 '/mason/index.html?year=1995&year=1996', '/mason/paper.html?handle=ru-001',
                 '/mason/paper.html?handle=ru-002', '/mason/paper.html?handle=none', '/mason/paper.html',
                 '/mason/none.html', '/mason/index.html?title=%D0%BD%D0%B0%D1%83%D0%BA%D0%B0']:
        yield 'GET', path, None, {}
        yield 'HEAD', path, None, {}
    yield 'POST', '/perl/time.cgi', 'name=of+a+form', FORM
    yield 'POST', '/papers/', 'title=region', FORM
    yield 'POST', '/mason/index.html', urllib.parse.urlencode({'title': 'region', 'year': '1999'}), FORM
    yield 'POST', '/mason/index.html?year=2001', 'title=' + 'x' * 100_000, FORM
    yield 'PUT', '/papers/', 'title=region', FORM
    yield 'DELETE', '/papers/wp-001', None, {}
    yield 'GET', '/papers/wp-001', None, {'If-Modified-Since': 'Mon, 17 Sep 2007 03:33:20 GMT'}
    yield 'GET', '/papers/wp-001', None, {'If-Modified-Since': 'Mon, 17 Sep 2007 03:33:19 GMT'}
    for address in ['203.0.113.7', '198.51.100.1, 203.0.113.7', '203.0.113.7, 127.0.0.1', 'nonsense']:
        for path in ['/papers/wp-001', '/perl/time.cgi']:
            yield 'GET', path, None, {'X-Forwarded-For': address}


def ask(port, row):
    method, path, body, fields = row
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=LIMIT)
    connection.request(method, path, body, {'Host': HOST, **fields})
    reply = connection.getresponse()
    content = reply.read()
    connection.close()
    if reply.status >= 300 and (method == 'HEAD' or re.match(rb'\s*(<!DOCTYPE|<html|$)', content, re.I)):
        return [reply.status, reply.headers.get('location'), reply.headers.get_all('set-cookie')]
    head = [(name, reply.headers.get_all(name)) for name in FIELDS if reply.headers.get_all(name)]
    return [reply.status, head, re.sub(rb'\d\d:\d\d:\d\d', b'TIME', content)]


class Site:
    """The processes of one way to serve the site, with ports for its front and for what is behind it."""

    def __init__(self, tmp, database, front):
        self.processes = []
        self.tmp, self.front, self.back = tmp, front, free_port()
        self.site = os.path.join(tmp, 'site')
        shutil.copytree(os.path.join(HERE, 'site'), self.site)
        os.makedirs(os.path.join(tmp, 'pages'))
        for folder, _, files in os.walk(tmp):
            os.chmod(folder, 0o755)
            for name in files:
                os.chmod(os.path.join(folder, name), 0o755 if name.endswith('.cgi') else 0o644)
        os.chmod(os.path.join(tmp, 'pages'), 0o777)
        self.values = {'tmp': tmp, 'site': self.site, 'database': database, 'front': front, 'back': self.back}

    def write(self, name, before='', **more):
        """Writes a configuration with its names replaced. Returns its path."""
        with open(os.path.join(HERE, name)) as file:
            text = file.read()
        for key, value in {**self.values, **more}.items():
            text = text.replace('{%s}' % key, str(value))
        path = os.path.join(self.tmp, name)
        with open(path, 'w') as file:
            file.write(before + text)
        return path

    def start(self, *command):
        log = open(os.path.join(self.tmp, 'log'), 'a')
        # Apache ends its whole process group.
        self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))

    def wait(self, *ports):
        for port in ports:
            wait_for(lambda: socket.create_connection(('127.0.0.1', port), 1).close(), self)

    def stop(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()

    def log(self):
        with open(os.path.join(self.tmp, 'log')) as file:
            return file.read()


def serve_apache(site):
    names = ['authz_core', 'alias', 'dir', 'mime', 'remoteip', 'perl']
    before = f'LoadModule mpm_prefork_module {MODULES}/mod_mpm_prefork.so\n'
    before += ''.join(f'LoadModule {name}_module {MODULES}/mod_{name}.so\n' for name in names)
    if os.geteuid() == 0:
        before += 'User www-data\nGroup www-data\n'
    # Mason reads forms by libapreq2 where it is installed.
    probe = subprocess.run(['perl', '-e', 'exit !grep { -e "$_/Apache2/Request.pm" } @INC'])
    has_apreq = probe.returncode == 0
    if has_apreq:
        before += f'LoadModule apreq_module {MODULES}/mod_apreq2.so\n'
    conf = site.write('apache.conf', before, arguments='mod_perl' if has_apreq else 'CGI')
    site.start(tool('apache2'), '-DFOREGROUND', '-f', conf)
    site.start(tool('nginx'), '-c', site.write('nginx.conf'), *(['-g', 'user www-data;'] if os.geteuid() == 0 else []))


def serve_forebay(site, forebay):
    """Starts Forebay for both configurations, as they are imported."""
    for language, conf in [('apache', site.write('apache.conf', arguments='mod_perl')), ('nginx', site.write('nginx.conf'))]:
        done = subprocess.run([forebay, 'import', language, conf], capture_output=True, text=True)
        if 'NOT TRANSLATED' in done.stdout or done.returncode > 1:
            raise SystemExit(done.stdout + done.stderr)
        path = os.path.join(site.tmp, language + '.toml')
        with open(path, 'w') as file:
            # As many processes as Apache has, and no access log, as nginx.conf has it.
            file.write('[log]\naccess = "off"\n\n' + done.stdout)
        site.start(forebay, 'serve', path)


def serve(kind, tmp, database, front, forebay):
    site = Site(tmp, database, front)
    (serve_apache if kind == 'apache' else lambda site: serve_forebay(site, forebay))(site)
    return site


def start_database(tmp):
    log = open(os.path.join(tmp, 'log'), 'w')
    process = subprocess.Popen(['sh', os.path.join(HERE, '../database/start-postgres.sh'), tmp], stdout=log, stderr=log)
    atexit.register(lambda: (process.terminate(), process.wait()))
    psql = ['psql', '-q', '-h', tmp, '-U', 'postgres', '-v', 'ON_ERROR_STOP=1']
    wait_for(lambda: subprocess.run([*psql, '-c', ''], check=True, capture_output=True), None)
    subprocess.run([*psql, '-c', TABLES], check=True)


def wait_for(attempt, site):
    deadline = time.monotonic() + LIMIT
    while True:
        try:
            return attempt()
        except (OSError, subprocess.CalledProcessError) as error:
            if time.monotonic() > deadline or site and any(process.poll() is not None for process in site.processes):
                raise SystemExit(f'{error}\n{site.log() if site else ""}')
            time.sleep(0.05)


def tool(name):
    return shutil.which(name, path=os.environ.get('PATH', '') + ':/usr/sbin:/sbin') or name


def free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


def compare(sites):
    """Sends all requests to both sites. Returns how many answers differ."""
    different = count = 0
    for row in rows():
        for where in ['front', 'back']:
            # Images are the front's. What clients claim about themselves does not pass Forebay as a front.
            if row[1].endswith('.gif') and where == 'back' or 'X-Forwarded-For' in row[3] and where == 'front':
                continue
            theirs, ours = (ask(getattr(site, where), row) for site in sites)
            count += 1
            if ours != theirs:
                different += 1
                print(f'{where}: {row[0]} {row[1]} {row[3] or ""}\n  Apache:  {theirs}\n  Forebay: {ours}')
    print(f'{count} answers compared, {different} differ')
    return different


EXPERIMENT = """
title = "{title}"
[load]
path = "{path}"
connections = 8
duration = "{duration}"
rounds = 6
[check]
status = 200
[[configuration]]
name = "nginx, Apache with mod_perl"
baseline = true
start = {apache}
url = "http://127.0.0.1:{{port}}"
[[configuration]]
name = "Forebay"
start = {forebay}
url = "http://127.0.0.1:{{port}}"
"""


def measure(folder, forebay, duration):
    loads = [('A script of ModPerl::Registry', '/perl/time.cgi'), ('A script with a query', '/perl/tables.cgi'),
             ('A handler with a query', '/papers/wp-007'), ('A page of Mason', '/mason/paper.html?handle=ru-001'),
             ('An image', '/images/logo.gif')]
    for title, path in loads:
        starts = {kind: [sys.executable, os.path.abspath(__file__), '--forebay', forebay, '--serve', kind, folder, '{port}']
                  for kind in ['apache', 'forebay']}
        text = EXPERIMENT.format(title=title, path=path, duration=duration,
                                 **{kind: str(start).replace("'", '"') for kind, start in starts.items()})
        file = os.path.join(folder, 'experiment.toml')
        with open(file, 'w') as out:
            out.write(text)
        subprocess.run([forebay, 'compare', file, '--out', os.path.join(folder, 'results')], check=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--forebay', default='forebay')
    parser.add_argument('--measure', metavar='TIME')
    parser.add_argument('--serve', nargs=3, metavar=('KIND', 'DATABASE', 'PORT'), help=argparse.SUPPRESS)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    forebay = shutil.which(options.forebay) or options.forebay
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        if options.serve:
            kind, database, port = options.serve
            site = serve(kind, os.path.join(folder, kind), database, int(port), forebay)
            atexit.register(site.stop)
            site.processes[0].wait()
            return 1
        database = os.path.join(folder, 'database')
        os.mkdir(database)
        start_database(database)
        sites = []
        for kind in ['apache', 'forebay']:
            sites.append(serve(kind, os.path.join(folder, kind), database, free_port(), forebay))
            atexit.register(sites[-1].stop)
        for site in sites:
            site.wait(site.back, site.front)
        different = compare(sites)
        if different:
            print(*(site.log() for site in sites), sep='\n', file=sys.stderr)
            return 1
        for site in sites:
            site.stop()
        if options.measure:
            measure(database, forebay, options.measure)
    return 0


sys.exit(main())
