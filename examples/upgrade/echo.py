"""An ASGI application that returns each message of a WebSocket."""


async def application(scope, receive, send):
    if scope['type'] != 'websocket':
        raise ValueError('only WebSockets are served here')
    await receive()
    await send({'type': 'websocket.accept'})
    while (message := await receive())['type'] == 'websocket.receive':
        await send({'type': 'websocket.send', 'text': message.get('text'), 'bytes': message.get('bytes')})
