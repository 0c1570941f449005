"""A WSGI application that makes a page from a parameter."""
import html
from urllib.parse import parse_qs


def application(environ, start_response):
    name = parse_qs(environ['QUERY_STRING']).get('name', ['World'])[0]
    body = ('<!DOCTYPE html>\n<title>Hello</title>\n<h1>Hello, %s</h1>\n' % html.escape(name)).encode()
    start_response('200 OK', [('Content-Type', 'text/html; charset=utf-8'),
                              ('Content-Length', str(len(body)))])
    return [body]
