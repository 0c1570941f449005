# An ASGI application for serve_asgi.rs: the first part of the path says what a request does.
import asyncio
import os
import signal
import sys
import time

PLAIN = [(b'content-type', b'text/plain')]


async def application(scope, receive, send):
    if scope['type'] == 'lifespan':
        return await lifespan(scope, receive, send)
    path = scope['path'][len(scope['root_path']):]
    name = path.split('/')[1]
    prefix = 'ws_' if scope['type'] == 'websocket' else 'do_'
    await globals()[prefix + name](scope, receive, send)


async def lifespan(scope, receive, send):
    while True:
        message = await receive()
        if message['type'] == 'lifespan.startup':
            if os.environ.get('STARTUP') == 'fails':
                await send({'type': 'lifespan.startup.failed', 'message': 'no database today'})
                return
            if os.environ.get('STARTUP') == 'raises':
                raise KeyError('raised in the startup')
            scope['state']['word'] = 'from the startup'
            print('startup')
            await send({'type': 'lifespan.startup.complete'})
        else:
            with open('ended', 'w'):
                pass
            await send({'type': 'lifespan.shutdown.complete'})
            return


async def reply(send, body, status=200, headers=PLAIN):
    if isinstance(body, str):
        body = body.encode()
    await send({'type': 'http.response.start', 'status': status, 'headers': headers})
    await send({'type': 'http.response.body', 'body': body})


async def read(receive):
    body = b''
    while True:
        message = await receive()
        assert message['type'] == 'http.request', message
        body += message['body']
        if not message['more_body']:
            return body


async def do_scope(scope, receive, send):
    names = ['type', 'http_version', 'method', 'scheme', 'path', 'raw_path', 'query_string',
             'root_path', 'server', 'asgi', 'state']
    lines = ['%s=%r' % (name, scope[name]) for name in names]
    lines += ['client=%r' % (scope['client'] and scope['client'][0]), sorted(scope['extensions'])]
    lines += ['%r: %r' % field for field in scope['headers']]
    scope['state']['word'] = 'changed by a request'
    await reply(send, '\n'.join(map(str, lines)))


async def do_echo(scope, receive, send):
    await send({'type': 'http.response.start', 'status': 200, 'headers': PLAIN})
    more = True
    while more:
        message = await receive()
        more = message.get('more_body', False)
        await send({'type': 'http.response.body', 'body': message['body'], 'more_body': more})


async def do_size(scope, receive, send):
    await reply(send, '%d' % len(await read(receive)))


async def do_unread(scope, receive, send):
    await reply(send, 'not read')


async def do_pieces(scope, receive, send):
    await send({'type': 'http.response.start', 'status': 201, 'headers': PLAIN + [
        (b'Set-Cookie', b'a=1'), (b'set-cookie', b'b=2'), (b'connection', b'close'),
        (b'transfer-encoding', b'chunked')]})
    for piece in b'a', b'', b'bc':
        await send({'type': 'http.response.body', 'body': piece, 'more_body': True})
    await send({'type': 'http.response.body'})


async def do_one(scope, receive, send):
    await reply(send, 'one piece')


async def do_none(scope, receive, send):
    await reply(send, 'must not be sent', 204, [])


async def do_large(scope, receive, send):
    await reply(send, b'x' * 3_000_000)


async def do_much(scope, receive, send):
    """Sends much more than all buffers hold, for a client that does not read."""
    global much
    much = 0
    await send({'type': 'http.response.start', 'status': 200, 'headers': PLAIN})
    for _ in range(10_000):
        await send({'type': 'http.response.body', 'body': b'y' * 65536, 'more_body': True})
        much += 65536


async def do_howmuch(scope, receive, send):
    await reply(send, '%d' % much)


much = 0


async def do_early(scope, receive, send):
    links = [b'</a.css>; rel=preload', b'</b.js>; rel=preload']
    await send({'type': 'http.response.early_hint', 'links': links})
    await reply(send, 'page')


async def do_trailers(scope, receive, send):
    await send({'type': 'http.response.start', 'status': 200, 'trailers': True,
                'headers': PLAIN + [(b'trailer', b'x-sum'), (b'content-length', b'4')]})
    await send({'type': 'http.response.body', 'body': b'body'})
    await send({'type': 'http.response.trailers', 'headers': [(b'x-sum', b'7')]})


async def do_raise(scope, receive, send):
    raise ValueError('before anything')


async def do_raiselater(scope, receive, send):
    await send({'type': 'http.response.start', 'status': 200, 'headers': PLAIN})
    await send({'type': 'http.response.body', 'body': b'x' * 1000, 'more_body': True})
    raise ValueError('in the middle')


async def do_nothing(scope, receive, send):
    pass


async def do_half(scope, receive, send):
    await send({'type': 'http.response.start', 'status': 200, 'headers': PLAIN})


async def do_short(scope, receive, send):
    await reply(send, 'short', headers=[(b'content-length', b'10')])


async def do_long(scope, receive, send):
    await reply(send, 'longer', headers=[(b'content-length', b'4')])


async def do_text(scope, receive, send):
    await send({'type': 'http.response.start', 'status': 200, 'headers': PLAIN})
    await send({'type': 'http.response.body', 'body': 'not bytes'})


async def do_split(scope, receive, send):
    await reply(send, '', headers=[(b'x-a', b'b\r\nX-C: d')])


async def do_twice(scope, receive, send):
    await send({'type': 'http.response.start', 'status': 200, 'headers': PLAIN})
    await send({'type': 'http.response.start', 'status': 200, 'headers': PLAIN})


async def do_exit(scope, receive, send):
    sys.exit(3)


async def do_pid(scope, receive, send):
    await reply(send, '%d' % os.getpid())


arrived = []


async def do_meet(scope, receive, send):
    """Answers when as many requests have arrived as the query says."""
    arrived.append(scope['query_string'])
    while len(arrived) < int(scope['query_string'].split(b'-')[0]):
        await asyncio.sleep(0.005)
    await reply(send, b'met ' + scope['query_string'])


waiting = {}


async def do_wait(scope, receive, send):
    """Waits until its client disconnects."""
    name = scope['query_string'].decode()
    waiting[name] = 'waits'
    with open('waits-' + name, 'w') as file:
        file.write('%d' % os.getpid())
    while (await receive())['type'] != 'http.disconnect':
        pass
    waiting[name] = 'disconnected'
    await send({'type': 'http.response.start', 'status': 200, 'headers': PLAIN})


async def do_waiting(scope, receive, send):
    await reply(send, waiting.get(scope['query_string'].decode(), 'unknown'))


async def do_many(scope, receive, send):
    """Sends many small pieces, and says if another task ran meanwhile."""
    ran = asyncio.Event()

    async def other():
        ran.set()
    task = asyncio.ensure_future(other())
    await send({'type': 'http.response.start', 'status': 200, 'headers': PLAIN})
    for _ in range(1000):
        await send({'type': 'http.response.body', 'body': b'.', 'more_body': True})
    end = b'others ran' if ran.is_set() else b'others had to wait'
    await send({'type': 'http.response.body', 'body': end})
    await task


async def do_endless(scope, receive, send):
    """Streams without end, and does not check if the client is connected."""
    name = scope['query_string'].decode()
    waiting[name] = 'streams'
    try:
        await send({'type': 'http.response.start', 'status': 200, 'headers': PLAIN})
        while True:
            await send({'type': 'http.response.body', 'body': b'z' * 100, 'more_body': True})
    finally:
        waiting[name] = 'ended'


late = {}


async def do_late(scope, receive, send):
    """Answers, and keeps its channels for the request /use."""
    late['send'], late['receive'] = send, receive
    await reply(send, 'first')


async def do_use(scope, receive, send):
    """Uses the channels of an earlier request."""
    try:
        await late['send']({'type': 'http.response.body', 'body': b'of another client'})
        text = 'went through'
    except RuntimeError as error:
        text = str(error)
    await reply(send, '%s; %s' % (text, (await late['receive']())['type']))


async def do_background(scope, receive, send):
    """Continues after its reply, as background tasks do."""
    await reply(send, 'answered')
    await asyncio.sleep(0.05)
    waiting['background'] = 'done'
    try:
        await send({'type': 'http.response.body', 'body': b'late'})
    except RuntimeError:
        waiting['background'] = 'done and refused'


async def do_fork(scope, receive, send):
    child = os.fork()
    if not child:
        await reply(send, 'child')
        return
    os.waitpid(child, 0)
    await reply(send, 'parent')


async def do_term(scope, receive, send):
    """Ends a child with SIGTERM, as a pool of processes does."""
    child = os.fork()
    if not child:
        time.sleep(1000)
    os.kill(child, signal.SIGTERM)
    await reply(send, '%d' % os.WTERMSIG(os.waitpid(child, 0)[1]))


async def do_dribble(scope, receive, send):
    """Sends the beginning of a body. With a number, sends only so many bytes of a complete one."""
    size = scope['query_string']
    headers = PLAIN + ([(b'content-length', size)] if size else [])
    await send({'type': 'http.response.start', 'status': 200, 'headers': headers})
    await send({'type': 'http.response.body', 'body': b'begun %d\n' % os.getpid(), 'more_body': True})
    await asyncio.sleep(1000)


async def do_childfds(scope, receive, send):
    reader, writer = os.pipe()
    if os.fork() == 0:
        links = [os.path.realpath('/proc/self/fd/%s' % n) for n in os.listdir('/proc/self/fd')]
        # The event loop has a pair of its own, which reaches nobody.
        os.write(writer, b'%d' % sum('socket:' in link for link in links))
        os._exit(0)
    os.wait()
    await reply(send, os.read(reader, 9))


async def ws_echo(scope, receive, send):
    await receive()
    offered = scope['subprotocols']
    await send({'type': 'websocket.accept', 'subprotocol': offered[-1] if offered else None,
                'headers': [(b'x-thing', b'1')]})
    while True:
        message = await receive()
        if message['type'] == 'websocket.disconnect':
            waiting['ws'] = '%d %s' % (message['code'], message['reason'])
            return
        await send({'type': 'websocket.send', 'text': message.get('text'),
                    'bytes': message.get('bytes')})


async def ws_scope(scope, receive, send):
    await send({'type': 'websocket.accept'})
    names = ['type', 'scheme', 'path', 'root_path', 'query_string', 'subprotocols', 'extensions']
    await send({'type': 'websocket.send', 'text': repr([scope[name] for name in names])})
    await send({'type': 'websocket.close', 'code': 4001, 'reason': 'said all'})


async def ws_refuse(scope, receive, send):
    await receive()
    await send({'type': 'websocket.close'})


async def ws_deny(scope, receive, send):
    await receive()
    await send({'type': 'websocket.http.response.start', 'status': 401, 'headers': PLAIN})
    await send({'type': 'websocket.http.response.body', 'body': b'not ', 'more_body': True})
    await send({'type': 'websocket.http.response.body', 'body': b'you'})


async def ws_return(scope, receive, send):
    await send({'type': 'websocket.accept'})


async def ws_raise(scope, receive, send):
    if scope['query_string']:
        await send({'type': 'websocket.accept'})
    if scope['query_string'] == b'code':
        await send({'type': 'websocket.close', 'code': 99999})
    raise ValueError('in a websocket')


async def ws_slow(scope, receive, send):
    """Reads nothing for a time: the client has to wait."""
    await receive()
    await send({'type': 'websocket.accept'})
    while waiting.get('slow') != 'read':
        await asyncio.sleep(0.005)
    count = 0
    while (await receive())['type'] == 'websocket.receive':
        count += 1
    waiting['slow'] = '%d' % count


async def do_readslow(scope, receive, send):
    waiting['slow'] = 'read'
    await reply(send, '')


def factory():
    return application


async def old(scope):
    """An application as in ASGI 2."""
