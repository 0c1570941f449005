"""A reply with JSON, with FastAPI."""
from fastapi import FastAPI

asgi = FastAPI()


@asgi.get('/json')
async def reply(name: str = 'World'):
    return {'message': 'Hello, %s' % name, 'numbers': list(range(10))}
