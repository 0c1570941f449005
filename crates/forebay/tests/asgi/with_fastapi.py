# A FastAPI application for serve_asgi.rs.
import asyncio

from fastapi import BackgroundTasks, FastAPI, WebSocket, WebSocketDisconnect
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

app = FastAPI()
log = []


class Item(BaseModel):
    name: str
    price: float


@app.on_event('startup')
async def start():
    log.append('started')


@app.get('/log')
async def read_log():
    return log


@app.get('/items/{number}')
async def item(number: int, q: str = 'none'):
    return {'number': number, 'q': q}


@app.post('/items')
def make(item: Item):
    """Runs in a thread."""
    return {'name': item.name, 'twice': 2 * item.price}


@app.get('/events')
async def events():
    async def lines():
        for number in range(3):
            yield 'data: %d\n\n' % number
            await asyncio.sleep(0.01)
    return StreamingResponse(lines(), media_type='text/event-stream')


@app.get('/later')
async def later(tasks: BackgroundTasks):
    tasks.add_task(log.append, 'background')
    return 'soon'


@app.websocket('/chat')
async def chat(socket: WebSocket):
    await socket.accept()
    try:
        while True:
            await socket.send_json({'said': await socket.receive_text()})
    except WebSocketDisconnect as gone:
        log.append('gone %d' % gone.code)
