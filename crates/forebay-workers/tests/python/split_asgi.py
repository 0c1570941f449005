# Feeds the host for ASGI applications with requests and frames, cut into random pieces, and compares
# the received data with the sent data. Its argument is the directory of the hosts.
import asyncio
import os
import random
import sys

PARTS = 'asgi.py', 'asgi/http.py', 'asgi/request.py', 'asgi/websocket.py'
host = {'__name__': 'forebay_asgi'}
for name in PARTS:
    with open(os.path.join(sys.argv[1], name)) as file:
        exec(compile(file.read(), name, 'exec'), host)


class Transport:
    """The gateway's end of a connection."""

    def __init__(self):
        self.written, self.is_paused, self.is_closed = b'', False, False

    def get_extra_info(self, _):
        return self

    def fileno(self):
        return -1

    def write(self, data):
        self.written += data

    def write_eof(self):
        pass

    def is_closing(self):
        return self.is_closed

    def close(self):
        self.is_closed = True

    abort = close

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        self.is_paused = False


async def application(scope, receive, send):
    seen.append([scope['type'], scope['path'], scope['client'], len(scope['headers'])])
    if scope['type'] == 'http':
        body, more = b'', True
        while more:
            message = await receive()
            body, more = body + message['body'], message['more_body']
        seen[-1].append(body)
        await send({'type': 'http.response.start', 'status': 200, 'headers': []})
        await send({'type': 'http.response.body', 'body': b'ok'})
        return
    await receive()
    await send({'type': 'websocket.accept'})
    while True:
        message = await receive()
        if message['type'] == 'websocket.disconnect':
            return seen[-1].append(message['code'])
        seen[-1].append(message.get('text') or message['bytes'])


def pieces(data):
    at, largest = 0, random.choice([1, 3, 50, 5000, 10 ** 7])
    while at < len(data):
        size = random.randint(1, largest)
        yield data[at:at + size]
        at += size


def chunked(body):
    out, at = b'', 0
    while at < len(body):
        part = body[at:at + random.choice([1, 2, 15, 16, 4000, 70000])]
        out += b'%x%b\r\n%b\r\n' % (len(part), random.choice([b'', b';a=b']), part)
        at += len(part)
    return out + b'0\r\n' + random.choice([b'', b'X-Sum: 1\r\n', b'A: 0\r\nB: 1\r\n']) + b'\r\n'


def frame(first, data):
    size, key = len(data), bytes(random.randrange(256) for _ in range(4))
    head = bytes([first])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 65536:
        head += bytes([0x80 | 126]) + size.to_bytes(2, 'big')
    else:
        head += bytes([0x80 | 127]) + size.to_bytes(8, 'big')
    return head + key + bytes(byte ^ key[at % 4] for at, byte in enumerate(data))


async def settle(is_done):
    for _ in range(10000):
        await asyncio.sleep(0)
        if is_done():
            return
    raise AssertionError('nothing happens any more')


async def feed(connection, data):
    for piece in pieces(data):
        while connection.transport.is_paused:
            await asyncio.sleep(0)
        connection.data_received(piece)
        if random.random() < 0.3:
            await asyncio.sleep(0)


def new_connection(server):
    connection = host['Connection'](server)
    connection.connection_made(Transport())
    return connection


async def requests(server):
    connection, expected = new_connection(server), []
    for number in range(random.randint(1, 4)):
        body = bytes(random.randrange(256) for _ in range(random.choice([0, 1, 10, 3000, 90000])))
        head = b'http 1.1 10.0.0.%d 5 127.0.0.1 80 \r\nPOST /%d HTTP/1.1\r\nHost: h\r\n' % (number, number)
        if not body:
            data, fields = head + b'\r\n', 1
        elif random.random() < 0.5:
            data, fields = head + b'Content-Length: %d\r\n\r\n' % len(body) + body, 2
        else:
            data, fields = head + b'Transfer-Encoding: chunked\r\n\r\n' + chunked(body), 2
        expected.append(['http', '/%d' % number, ('10.0.0.%d' % number, 5), fields, body])
        before = connection.transport.written
        await feed(connection, data)
        await settle(lambda: connection.request is None)
        assert connection.transport.written[len(before):].endswith(b'\r\n\r\nok')
    assert seen == expected, 'requests differ'
    assert not connection.transport.is_closed


async def messages(server):
    connection = new_connection(server)
    expected = ['websocket', '/ws', None, 5]
    await feed(connection, b'https 2 - 0 ::1 443 \r\nGET /ws HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\n'
               b'Connection: upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: k\r\n\r\n')
    await settle(lambda: b'\r\n\r\n' in connection.transport.written)
    data = b''
    for _ in range(random.randint(1, 200)):
        content = bytes(random.randrange(97, 123) for _ in range(random.choice([1, 5, 125, 126, 3000])))
        is_text = random.random() < 0.5
        first = 1 if is_text else 2
        expected.append(content.decode() if is_text else content)
        while len(content) > 1 and random.random() < 0.3:
            cut = random.randint(0, len(content))
            data += frame(first, content[:cut])
            first, content = 0, content[cut:]
            if random.random() < 0.5:
                data += frame(0x80 | random.choice([9, 10]), b'between')
        data += frame(0x80 | first, content)
    data += frame(0x88, (4000).to_bytes(2, 'big'))
    expected.append(4000)
    await feed(connection, data)
    await settle(lambda: seen[-1][-1] == 4000)
    assert seen == [expected], 'messages differ'
    assert connection.transport.is_closed


async def main():
    server = host['Server'](asyncio.get_running_loop(), 1 << 20, 1)
    server.application = application
    given = os.environ.get('FOREBAY_SEED')
    for seed in [int(given)] if given else range(25):
        random.seed(seed)
        try:
            for run in requests, messages:
                seen.clear()
                await run(server)
                await settle(lambda: not server.running)
        except BaseException:
            print('FOREBAY_SEED=%d repeats it' % seed, file=sys.stderr)
            raise


seen = []
asyncio.run(main())
print('same')
