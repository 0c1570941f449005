# A Starlette application for serve_asgi.rs.
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute

gone = []


class Named(BaseHTTPMiddleware):
    async def dispatch(self, request, call_next):
        response = await call_next(request)
        response.headers['X-Named'] = request.url.path
        return response


async def about(request):
    return JSONResponse({'url': str(request.url), 'client': request.client.host,
                         'far': str(request.url_for('inner:one', name='n')),
                         'body': (await request.body()).decode(), 'query': dict(request.query_params)})


async def one(request):
    return PlainTextResponse('inner ' + request.path_params['name'])


async def own_file(request):
    return FileResponse(__file__)


async def upload(request):
    size = 0
    async for part in request.stream():
        size += len(part)
    return PlainTextResponse('%d' % size)


async def endless(request):
    async def parts():
        try:
            while True:
                yield b'x' * 1000
        finally:
            gone.append('endless')
    return StreamingResponse(parts())


async def read_gone(request):
    return PlainTextResponse(' '.join(gone))


async def fails(request):
    raise ValueError('in starlette')


async def echo(socket):
    await socket.accept(subprotocol=socket.scope['subprotocols'][0])
    await socket.send_bytes(await socket.receive_bytes())
    await socket.close(4002)


app = Starlette(
    routes=[
        Route('/about', about, methods=['GET', 'POST']), Route('/file', own_file),
        Route('/upload', upload, methods=['POST']), Route('/endless', endless),
        Route('/gone', read_gone), Route('/fails', fails), WebSocketRoute('/echo', echo),
        Mount('/inner', name='inner', routes=[Route('/{name}', one, name='one')]),
    ],
    middleware=[Middleware(GZipMiddleware, minimum_size=100), Middleware(Named)])
