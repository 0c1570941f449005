"""The same reply of 4 kB as a WSGI and as an ASGI application, and an echo over WebSocket."""

BODY = b'Hello, World! ' * 292 + b'Bye.\n'
LENGTH = str(len(BODY))


def wsgi(environ, start_response):
    start_response('200 OK', [('Content-Type', 'text/plain'), ('Content-Length', LENGTH)])
    return [BODY]


async def asgi(scope, receive, send):
    if scope['type'] == 'websocket':
        return await echo(receive, send)
    if scope['type'] != 'http':
        raise ValueError('%s is not spoken here' % scope['type'])
    await send({'type': 'http.response.start', 'status': 200, 'headers': [
        (b'content-type', b'text/plain'), (b'content-length', LENGTH.encode())]})
    await send({'type': 'http.response.body', 'body': BODY})


async def echo(receive, send):
    await receive()
    await send({'type': 'websocket.accept'})
    while True:
        message = await receive()
        if message['type'] == 'websocket.disconnect':
            return
        if message.get('text') is not None:
            await send({'type': 'websocket.send', 'text': message['text']})
        else:
            await send({'type': 'websocket.send', 'bytes': message['bytes']})
