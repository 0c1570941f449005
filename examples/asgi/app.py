"""An ASGI application without a framework: answers with the path, or counts slowly at /count."""
import asyncio


async def application(scope, receive, send):
    if scope['type'] != 'http':
        raise ValueError('only http is spoken here')
    body = b''
    while True:
        message = await receive()
        body += message.get('body', b'')
        if not message.get('more_body'):
            break
    await send({'type': 'http.response.start', 'status': 200,
                'headers': [(b'content-type', b'text/plain; charset=utf-8')]})
    if scope['path'] == '/count':
        for number in range(3):
            await send({'type': 'http.response.body', 'body': b'%d\n' % number, 'more_body': True})
            await asyncio.sleep(0.1)
        await send({'type': 'http.response.body', 'body': b''})
        return
    text = '%s %s from %s\n' % (scope['method'], scope['path'], scope['client'][0])
    await send({'type': 'http.response.body', 'body': text.encode() + body})
