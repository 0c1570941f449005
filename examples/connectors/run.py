#!/usr/bin/env python3
"""Tries every kind of backend that answers slowly, in pieces or not to the end, with every kind of client.

    run.py [--forebay PROGRAM] [--requests N] [--backend NAME PATH ROUTE]...

Starts small backends and `forebay serve` on free ports, and prints a table. `--backend` adds a server that runs already:
ROUTE is its route in the configuration, and PATH a page that is always the same. Exit 1 if a request hangs (no end
within 30 s), if a whole reply of a backend does not arrive, or if a part of a reply looks like a whole one.
"""
import argparse
import asyncio
import os
import struct
import subprocess
import sys
import tempfile

BODY = bytes(range(256)) * 8
LIMIT = 30


# Backends: each protocol reads a request, and frames a reply.

async def read_http(reader):
    return await reader.readuntil(b'\r\n\r\n')


async def read_fastcgi(reader):
    while True:
        _, kind, number, length, padding, _ = struct.unpack('>BBHHBB', await reader.readexactly(8))
        await reader.readexactly(length + padding)
        if (kind, number, length) == (5, 1, 0):
            return


async def read_scgi(reader):
    length = await reader.readuntil(b':')
    await reader.readexactly(int(length[:-1]) + 1)


async def read_uwsgi(reader):
    _, length, _ = struct.unpack('<BHB', await reader.readexactly(4))
    await reader.readexactly(length)


async def read_ajp(reader):
    _, length = struct.unpack('>HH', await reader.readexactly(4))
    # A ping before each request.
    return await reader.readexactly(length) == b'\x0a'


def record(kind, content):
    return struct.pack('>BBHHBB', 1, kind, 1, len(content), 0, 0) + content


FIELDS = b'Content-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n' % len(BODY)
HTTP = b'HTTP/1.1 200 OK\r\n' + FIELDS + BODY
FASTCGI = record(6, FIELDS) + record(6, BODY) + record(6, b'') + record(3, bytes(8))


def packet(content):
    return b'AB' + struct.pack('>H', len(content)) + content


def ajp_text(text):
    return struct.pack('>H', len(text)) + text + b'\0'


PONG = packet(b'\x09')
AJP = (packet(b'\x04' + struct.pack('>H', 200) + ajp_text(b'OK') + struct.pack('>H', 1)
              + b'\xa0\x03' + ajp_text(b'%d' % len(BODY)))
       + packet(b'\x03' + struct.pack('>H', len(BODY)) + BODY + b'\0') + packet(b'\x05\x01'))


def frame(kind, flags, stream, content=b''):
    return struct.pack('>I', len(content))[1:] + struct.pack('>BBI', kind, flags, stream) + content


def http2(stream):
    # The status is in the static table; the field is a literal with a name of that table.
    length = b'%d' % len(BODY)
    head = b'\x88\x0f\x0d' + bytes([len(length)]) + length
    return frame(1, 4, stream, head) + frame(0, 1, stream, BODY)


# The reader, the reply, if the connection stays open, and the route.
PROTOCOLS = {
    'http': (read_http, HTTP, True, 'proxy = "http://{}"'),
    'fastcgi': (read_fastcgi, FASTCGI, True,
                'fastcgi = {{ to = "{}", root = "/srv/none", scripts = "*", must_exist = false }}'),
    'scgi': (read_scgi, b'Status: 200 OK\r\n' + FIELDS + BODY, False, 'scgi = {{ to = "{}" }}'),
    'uwsgi': (read_uwsgi, HTTP, False, 'uwsgi = {{ to = "{}" }}'),
    'ajp': (read_ajp, AJP, True, 'ajp = {{ to = "{}" }}'),
    'h2c': (None, None, True, 'proxy = {{ to = "h2c://{}", connect_timeout = "60s" }}'),
}


async def whole(reply, write):
    await write(reply)


async def byte_by_byte(reply, write):
    for at in range(len(reply)):
        await write(reply[at:at + 1])


async def pieces_with_pauses(reply, write):
    third = len(reply) // 3
    for piece in (reply[:third], reply[third:2 * third], reply[2 * third:]):
        await write(piece)
        await asyncio.sleep(0.01)


async def late_end(reply, write):
    await write(reply[:-1])
    await asyncio.sleep(0.05)
    await write(reply[-1:])
    await asyncio.sleep(0.05)


async def early_end(reply, write):
    await write(reply[:len(reply) // 2])
    return False


BEHAVIOURS = [whole, byte_by_byte, pieces_with_pauses, late_end, early_end]


def backend(protocol, behave):
    read, reply, keeps, _ = PROTOCOLS[protocol]

    async def serve(reader, writer):
        async def write(data):
            writer.write(data)
            await writer.drain()
        try:
            while True:
                if await read(reader) is True:
                    await write(PONG)
                    continue
                if await behave(reply, write) is False or not keeps:
                    break
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        writer.close()
    return serve


def http2_backend(behave):
    """Answers one request of a connection after the other, so that their frames do not mix."""
    async def answer(asked, writer):
        async def write(data):
            writer.write(data)
            await writer.drain()
        while stream := await asked.get():
            if await behave(http2(stream), write) is False:
                break
        writer.close()

    async def serve(reader, writer):
        asked = asyncio.Queue()
        answering = asyncio.create_task(answer(asked, writer))
        acknowledged = False
        try:
            await reader.readexactly(24)
            # At most four streams: further requests wait in Forebay, for up to `connect_timeout`.
            writer.write(frame(4, 0, 0, struct.pack('>HI', 3, 4)))
            while True:
                length, kind, flags, stream = struct.unpack('>IBBI', b'\0' + await reader.readexactly(9))
                await reader.readexactly(length)
                if kind == 1:
                    asked.put_nowait(stream)
                elif kind == 4 and not flags & 1 and not acknowledged:
                    acknowledged = True
                    writer.write(frame(4, 1, 0))
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        asked.put_nowait(0)
        await asyncio.gather(answering, return_exceptions=True)
    return serve


# Clients: each sends requests, and says of each if its reply was whole, refused, or broken off.

async def read_reply(reader):
    head = await reader.readuntil(b'\r\n\r\n')
    status = int(head.split(b' ')[1])
    fields = dict(line.lower().split(b': ', 1) for line in head.split(b'\r\n')[1:-2])
    if b'content-length' in fields:
        body = await reader.readexactly(int(fields[b'content-length']))
    else:
        body = b''
        while size := int((await reader.readuntil(b'\r\n')).strip(), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
    return status, body


async def ask(page, stream, fields='', half=False):
    reader, writer = stream
    try:
        writer.write(f'GET {page.path} HTTP/1.1\r\nHost: {page.host}\r\n{fields}\r\n'.encode())
        await writer.drain()
        if half:
            writer.write_eof()
        status, body = await asyncio.wait_for(read_reply(reader), LIMIT)
        page.body = page.body or body
        if status == 200:
            return 'whole' if body == page.body else 'WRONG'
        return 'refused' if status == 502 else f'WRONG {status}'
    except (asyncio.IncompleteReadError, ConnectionError):
        return 'broken off'
    except asyncio.TimeoutError:
        return 'HANG'


class Page:
    def __init__(self, name, path, host='h', body=None, ends=True):
        self.name, self.path, self.host, self.body, self.ends = name, path, host, body, ends


async def kept(connect, page, count, pause=0.0):
    stream, seen = await connect(), []
    for _ in range(count):
        seen.append(await ask(page, stream))
        if seen[-1] in ('broken off', 'HANG'):
            stream[1].close()
            stream = await connect()
        await asyncio.sleep(pause)
    stream[1].close()
    return seen


async def new_ones(connect, page, count, fields='Connection: close\r\n', half=False):
    seen = []
    for _ in range(count):
        stream = await connect()
        seen.append(await ask(page, stream, fields, half))
        stream[1].close()
    return seen


async def half_closed(connect, page, count):
    return await new_ones(connect, page, count, '', True)


async def pausing(connect, page, count):
    # Longer than a kept FastCGI connection is idle.
    return await kept(connect, page, min(count, 3), 2.5)


async def many(connect, page, count):
    all_seen = await asyncio.gather(*(new_ones(connect, page, count) for _ in range(16)))
    return [one for seen in all_seen for one in seen]


CLIENTS = [kept, new_ones, pausing, half_closed, many]


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--forebay', default='forebay')
    parser.add_argument('--requests', type=int, default=20)
    parser.add_argument('--backend', nargs=3, action='append', default=[], metavar=('NAME', 'PATH', 'ROUTE'))
    options = parser.parse_args()
    routes, servers, pages = [], [], []
    for protocol, (_, _, _, route) in PROTOCOLS.items():
        for behave in BEHAVIOURS:
            serve = http2_backend(behave) if protocol == 'h2c' else backend(protocol, behave)
            server = await asyncio.start_server(serve, '127.0.0.1', 0)
            servers.append(server)
            at = '127.0.0.1:%d' % server.sockets[0].getsockname()[1]
            path = f'/{protocol}/{behave.__name__}'
            routes.append(f'[[site.route]]\npath = "{path}"\n' + route.format(at) + '\n')
            name = f'{protocol}, {behave.__name__.replace("_", " ")}'
            pages.append(Page(name, path, body=BODY, ends=behave is not early_end))
    for number, (name, path, route) in enumerate(options.backend):
        host = f'b{number}.test'
        routes.append(f'[[site]]\nlisten = "127.0.0.1:0"\nhosts = ["{host}"]\n[[site.route]]\n{route}\n')
        pages.append(Page(name, path, host))
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, 'site.toml')
        with open(file, 'w') as out:
            out.write('[[site]]\nlisten = "127.0.0.1:0"\n' + ''.join(routes))
        forebay = subprocess.Popen([options.forebay, 'serve', file], stderr=subprocess.PIPE, text=True)
        try:
            for line in forebay.stderr:
                if 'serving http://' in line:
                    host, port = line.split('//')[1].strip().split(':')
                    break
            # Read what it says, so that it never waits.
            asyncio.get_running_loop().run_in_executor(None, forebay.stderr.read)
            return await table(lambda: asyncio.open_connection(host, int(port)), pages, options.requests)
        finally:
            forebay.terminate()
            forebay.wait()


async def table(connect, pages, count):
    names = [client.__name__ for client in CLIENTS]
    print('| backend | ' + ' | '.join(names) + ' |\n|---' + '|---' * len(names) + '|')
    for page in pages:
        if page.body is None:
            stream = await connect()
            first = await ask(page, stream)
            stream[1].close()
            if first != 'whole':
                print(f'{page.name}: the first reply is {first}: {page.body}')
                return 1
    # All rows at the same time, so that the gateway is busy.
    of_page = [asyncio.gather(*(client(connect, page, count) for client in CLIENTS)) for page in pages]
    bad = 0
    for page, of_clients in zip(pages, await asyncio.gather(*of_page)):
        cells = []
        for seen in of_clients:
            right = {'whole'} if page.ends else {'refused', 'broken off'}
            bad += sum(one not in right for one in seen)
            cells.append(', '.join(f'{seen.count(one)} {one}' for one in sorted(set(seen))))
        print(f'| {page.name} | ' + ' | '.join(cells) + ' |')
    return 1 if bad else 0


sys.exit(asyncio.run(main()))
