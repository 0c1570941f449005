# A WSGI application for serve_checkers.rs. The validator of the standard library checks it and its server.
from wsgiref.validate import validator

PLAIN = ('Content-Type', 'text/plain')


class Pieces:
    def __init__(self):
        self.pieces = iter([b'a', b'', b'bc'])

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.pieces)

    def close(self):
        pass


def answer(environ, start_response):
    path = environ['PATH_INFO']
    if path == '/echo':
        body = environ['wsgi.input'].read(int(environ.get('CONTENT_LENGTH') or 0))
        start_response('200 OK', [PLAIN])
        return [body]
    if path == '/cookies':
        start_response('200 OK', [PLAIN, ('Set-Cookie', 'a=1'), ('Set-Cookie', 'b=2')])
        return [b'two']
    if path == '/pieces':
        start_response('200 OK', [PLAIN])
        return Pieces()
    if path == '/none':
        start_response('204 No Content', [])
        return []
    environ['wsgi.errors'].write('nothing at %s\n' % path)
    start_response('404 Not Found', [PLAIN])
    return [b'nothing here']


application = validator(answer)
