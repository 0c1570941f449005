#!/usr/bin/env python3
"""Tries every kind of backend that answers slowly, in pieces or not to the end, with every kind of client.

    run.py [--forebay PROGRAM] [--requests N]

Starts small backends and `forebay serve` on free ports, and prints a table. Exit 1 if a request hangs (no end within
30 s), if a whole reply of a backend does not arrive, or if a part of a reply looks like a whole one.
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


def record(kind, content):
    return struct.pack('>BBHHBB', 1, kind, 1, len(content), 0, 0) + content


FIELDS = b'Content-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n' % len(BODY)
HTTP = b'HTTP/1.1 200 OK\r\n' + FIELDS + BODY
FASTCGI = record(6, FIELDS) + record(6, BODY) + record(6, b'') + record(3, bytes(8))
# The reader, the reply, if the connection stays open, and the route.
PROTOCOLS = {
    'http': (read_http, HTTP, True, 'proxy = "http://{}"'),
    'fastcgi': (read_fastcgi, FASTCGI, True,
                'fastcgi = {{ to = "{}", root = "/srv/none", scripts = "*", must_exist = false }}'),
    'scgi': (read_scgi, b'Status: 200 OK\r\n' + FIELDS + BODY, False, 'scgi = {{ to = "{}" }}'),
    'uwsgi': (read_uwsgi, HTTP, False, 'uwsgi = {{ to = "{}" }}'),
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
                await read(reader)
                if await behave(reply, write) is False or not keeps:
                    break
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        writer.close()
    return serve


# Clients: each sends requests, and says of each if its reply was whole, refused, or broken off.

async def reply_of(reader):
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
    if status == 200:
        return 'whole' if body == BODY else 'WRONG'
    return 'refused' if status == 502 else f'WRONG {status}'


async def ask(path, stream, fields='', half=False):
    reader, writer = stream
    try:
        writer.write(f'GET {path} HTTP/1.1\r\nHost: h\r\n{fields}\r\n'.encode())
        await writer.drain()
        if half:
            writer.write_eof()
        return await asyncio.wait_for(reply_of(reader), LIMIT)
    except (asyncio.IncompleteReadError, ConnectionError):
        return 'broken off'
    except asyncio.TimeoutError:
        return 'HANG'


async def kept(connect, path, count, pause=0.0):
    stream, seen = await connect(), []
    for _ in range(count):
        seen.append(await ask(path, stream))
        if seen[-1] in ('broken off', 'HANG'):
            stream[1].close()
            stream = await connect()
        await asyncio.sleep(pause)
    stream[1].close()
    return seen


async def new_ones(connect, path, count, fields='Connection: close\r\n', half=False):
    seen = []
    for _ in range(count):
        stream = await connect()
        seen.append(await ask(path, stream, fields, half))
        stream[1].close()
    return seen


async def half_closed(connect, path, count):
    return await new_ones(connect, path, count, '', True)


async def pausing(connect, path, count):
    # Longer than a kept FastCGI connection is idle.
    return await kept(connect, path, min(count, 3), 2.5)


async def many(connect, path, count):
    all_seen = await asyncio.gather(*(new_ones(connect, path, count) for _ in range(16)))
    return [one for seen in all_seen for one in seen]


CLIENTS = [kept, new_ones, pausing, half_closed, many]


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--forebay', default='forebay')
    parser.add_argument('--requests', type=int, default=20)
    options = parser.parse_args()
    routes, servers = [], []
    for protocol, (_, _, _, route) in PROTOCOLS.items():
        for behave in BEHAVIOURS:
            server = await asyncio.start_server(backend(protocol, behave), '127.0.0.1', 0)
            servers.append(server)
            at = '127.0.0.1:%d' % server.sockets[0].getsockname()[1]
            path = f'/{protocol}/{behave.__name__}'
            routes.append(f'[[site.route]]\npath = "{path}"\n' + route.format(at) + '\n')
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
            return await table(lambda: asyncio.open_connection(host, int(port)), options.requests)
        finally:
            forebay.terminate()
            forebay.wait()


async def table(connect, count):
    names = [client.__name__ for client in CLIENTS]
    print('| backend | ' + ' | '.join(names) + ' |\n|---' + '|---' * len(names) + '|')
    bad = 0
    rows = [(protocol, behave) for protocol in PROTOCOLS for behave in BEHAVIOURS]

    def results_of(protocol, behave):
        path = f'/{protocol}/{behave.__name__}'
        return asyncio.gather(*(client(connect, path, count) for client in CLIENTS))

    # All rows at the same time, so that the gateway is busy.
    results = await asyncio.gather(*(results_of(*row) for row in rows))
    for (protocol, behave), of_clients in zip(rows, results):
        cells = []
        for seen in of_clients:
            right = {'refused', 'broken off'} if behave is early_end else {'whole'}
            bad += sum(one not in right for one in seen)
            cells.append(', '.join(f'{seen.count(one)} {one}' for one in sorted(set(seen))))
        print(f'| {protocol}, {behave.__name__.replace("_", " ")} | ' + ' | '.join(cells) + ' |')
    return 1 if bad else 0


sys.exit(asyncio.run(main()))
