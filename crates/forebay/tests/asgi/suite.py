# Runs the tests of Starlette against Forebay's ASGI host, for serve_asgi_suite.rs. Forebay serves `app`. A request
# to /run starts pytest in a thread of this process, and gets its results. Starlette's TestClient usually calls the
# application of a test itself. Here, it sends each request to Forebay over a socket. Forebay passes the request to
# `app`, which calls the application of the test.
import asyncio
import functools
import http.client
import io
import itertools
import json
import os
import ssl
import struct
import sys
import threading
import types
from urllib.parse import parse_qs

HERE, SUITE = os.getcwd(), os.environ['SUITE']
os.chdir(SUITE)
sys.path.insert(0, SUITE)
# One file imports trio, for the type of a variable. No test for trio runs.
sys.modules['trio'] = trio = types.ModuleType('trio')
sys.modules['trio.lowlevel'] = trio.lowlevel = types.ModuleType('trio.lowlevel')

import typing_extensions

# Debian 12 has older modules. This type is only for type checkers.
typing_extensions.TypeIs = typing_extensions.TypeGuard

import httpx
import pytest
import starlette.testclient as testclient

# Newer versions of httpx write JSON without spaces.
httpx._content.json_dumps = functools.partial(json.dumps, separators=(',', ':'))

DEADLINE = 20
CALL = 'x-suite-call'
TEXT, BINARY, CLOSE = 1, 2, 8
# Fields of the reply to a handshake that the application does not choose.
OF_HANDSHAKE = ('upgrade', 'connection', 'sec-websocket-accept', 'sec-websocket-protocol', 'date', 'server')

CLIENT = 'the test asks for a property of the TestClient, which no socket has'
REFUSAL = 'the test asks for the code of a refused handshake, which HTTP cannot carry'
CLOSED = 'the application closes a WebSocket that its client has closed; with ASGI 2.4, this raises an OSError'
SKIPPED = {
    'test_accessing_context_from_threaded_sync_endpoint': CLIENT,
    'test_use_testclient_as_contextmanager': CLIENT,
    'test_websocket_not_block_on_close': CLIENT,
    'test_client': CLIENT,
    'test_client_custom_client': CLIENT,
    'test_force_500_response': 'the TestClient makes a 500 without a body; Forebay sends one with a text',
    'test_rejected_connection': REFUSAL,
    'test_send_response_unsupported': REFUSAL,
    'test_websocket_endpoint_on_disconnect': CLOSED,
    'test_websocket_concurrency_pattern': CLOSED,
    'test_receive_before_accept': 'the client would send an event that is no WebSocket frame',
    'test_receive_wrong_message_type': 'the client would send an event that is no WebSocket frame',
    'test_request_headers': 'the application expects the field Connection, which Forebay does not pass on',
    'test_request_send_push_promise': 'the test adds an extension (HTTP/2 push) that the host does not offer',
    'test_response_phrase': 'the application sends 123 as the status of a reply, which HTTP does not allow',
    'test_staticfiles_null_byte_in_path': 'Forebay itself refuses a zero byte in a path',
    'test_staticfiles_with_invalid_dir_permissions_returns_401': 'root may read every directory',
}
# Over HTTP/2, to the proxy or from it.
SKIPPED_WITH_HTTP_2 = {
    'test_websocket_headers': 'HTTP/2 has no Sec-WebSocket-Key',
    'test_websocket_route_middleware': 'HTTP/2 has names of fields in lower case only',
}
# httpx does not send this value of the parameter.
SKIPPED_CASES = {'test_cookies_invalid[asyncio-  =  b  ;  ;  =  ;   c  =  ;  -expected4]': 'no valid field'}

calls = {}
numbers = itertools.count()


class Call:
    """A request of a test, and the application that answers it."""

    def __init__(self, transport):
        self.app, self.state = transport.app, transport.app_state
        self.number = str(next(numbers))
        self.ended = threading.Event()
        self.error = self.debug = None
        self.received = 0          # messages that the application has received
        self.is_waiting = False    # the application waits for a message
        self.change = threading.Condition()
        calls[self.number] = self

    def set(self, is_waiting, received=0):
        with self.change:
            self.is_waiting = is_waiting
            self.received += received
            self.change.notify()

    async def answer(self, scope, receive, send):
        async def send_or_note(message):
            if message['type'] == 'http.response.debug':
                self.debug = message['info']
            else:
                await send(message)

        async def receive_and_count():
            self.set(True)
            message = await receive()
            self.set(False, 1)
            return message

        if scope['type'] == 'http':
            scope['extensions']['http.response.debug'] = {}
        scope['state'] = self.state.copy()
        try:
            await self.app(scope, receive_and_count, send_or_note)
        except Exception as error:
            self.error = error
            raise
        finally:
            self.ended.set()
            self.set(True)

    def settle(self, sent):
        """Waits until the application has received all messages and waits for another, or has ended."""
        with self.change:
            self.change.wait_for(lambda: self.ended.is_set() or self.is_waiting and self.received == sent, DEADLINE)

    def end(self):
        """Waits for the application. Raises its exception."""
        assert self.ended.wait(DEADLINE), 'the application did not return'
        calls.pop(self.number, None)
        error, self.error = self.error, None
        if error is not None:
            raise error


async def app(scope, receive, send):
    assert scope['type'] != 'lifespan'
    fields = dict(scope['headers'])
    if CALL.encode() not in fields:
        return await run(scope, receive, send)
    call = calls[fields[CALL.encode()].decode()]
    if scope['type'] == 'websocket':
        scope['headers'].remove((b'upgrade', b'websocket'))
    scope['headers'].remove((CALL.encode(), call.number.encode()))
    await call.answer(scope, receive, send)


async def run(scope, receive, send):
    """Runs all tests, and answers with their results."""
    query = {name: values[0] for name, values in parse_qs(scope['query_string'].decode()).items()}
    Transport.ports = {'http': int(query['http']), 'https': int(query['https'])}
    Transport.version = query['version']
    results = Results()
    options = ['--rootdir', SUITE, '--basetemp', os.path.join(HERE, 'temporary'), '-s', '-qq',
               '-o', 'addopts=', '-o', 'filterwarnings=', '-W', 'default']
    for name in 'cacheprovider', 'faulthandler', 'unraisableexception', 'threadexception':
        options += ['-p', 'no:' + name]
    os.environ['PYTEST_DISABLE_PLUGIN_AUTOLOAD'] = '1'
    options += ['-p', 'anyio.pytest_plugin'] + ['tests']
    await send({'type': 'http.response.start', 'status': 200, 'headers': []})
    running = asyncio.get_running_loop().run_in_executor(None, pytest.main, options, [results])
    while not running.done():
        # The client waits only for a time for the next byte.
        await asyncio.wait([running], timeout=1)
        await send({'type': 'http.response.body', 'body': b'.', 'more_body': True})
    body = '\n'.join([json.dumps(results.counts)] + results.failures)
    await send({'type': 'http.response.body', 'body': body.encode()})


class Results:
    """A plugin of pytest: selects the tests that use the host, and counts."""

    def __init__(self):
        self.counts = {'passed': 0, 'failed': 0, 'skipped': 0}
        self.failures = []

    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if 'test_client_factory' in item.fixturenames
                    and '[trio' not in item.nodeid and '-trio' not in item.nodeid]
        skipped = {**SKIPPED, **SKIPPED_WITH_HTTP_2} if Transport.version == '2' else SKIPPED
        for item in items:
            reason = skipped.get(item.originalname) or SKIPPED_CASES.get(item.name)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))

    def pytest_runtest_logreport(self, report):
        if report.when == 'call' or report.outcome != 'passed':
            self.counts[report.outcome] += 1
        if report.failed:
            self.failures += [report.nodeid, report.longreprtext]


class Transport:
    """Replaces the transport of Starlette's TestClient."""
    ports = version = None
    own = threading.local()    # httpx waits forever if two threads share a connection of HTTP/2

    @classmethod
    def wire(cls):
        if not hasattr(cls.own, 'wire'):
            is_http2 = cls.version == '2'
            cls.own.wire = httpx.HTTPTransport(verify=False, http1=not is_http2, http2=is_http2)
        return cls.own.wire

    def handle_request(self, request):
        if request.url.scheme in ('ws', 'wss'):
            raise testclient._Upgrade(Session(self, request))
        call = Call(self)
        url = request.url.copy_with(host='127.0.0.1', port=Transport.ports[request.url.scheme])
        fields = httpx.Headers(request.headers.multi_items() + [(CALL, call.number)])
        if 'transfer-encoding' in fields:
            # Forebay refuses a request with both, because proxies could find two ends of its body.
            fields.pop('content-length', None)
        response = None
        try:
            response = Transport.wire().handle_request(httpx.Request(
                request.method, url, headers=fields, stream=request.stream))
            response.read()
        except httpx.LocalProtocolError:
            raise    # the client has not sent it
        except httpx.TransportError as error:
            failure = error
        try:
            call.end()
        except Exception:
            if self.raise_server_exceptions:
                raise
        if response is None:
            raise failure
        response.request = request
        if call.debug is not None:
            response.template, response.context = call.debug['template'], call.debug['context']
        return response


testclient._TestClientTransport.handle_request = Transport.handle_request


class Stream(io.BufferedReader):
    """What a server sends. HTTPResponse would close it after the reply to a handshake."""

    def close(self):
        pass


class Session(testclient.WebSocketTestSession):
    """A WebSocket of a test."""

    def __init__(self, transport, request):
        self.transport, self.request = transport, request
        self.accepted_subprotocol = self.extra_headers = None
        self.is_closed = False
        self.sent = 1    # messages for the application, of which websocket.connect is the first

    def __enter__(self):
        self.call = Call(self.transport)
        scheme = {'ws': 'http', 'wss': 'https'}[self.request.url.scheme]
        self.socket = connect(scheme)
        self.file = Stream(self.socket.makefile('rb', 0))
        fields = self.request.headers.multi_items() + [('upgrade', 'websocket'), (CALL, self.call.number)]
        lines = ['GET %s HTTP/1.1' % self.request.url.raw_path.decode()] + ['%s: %s' % field for field in fields]
        self.socket.sendall('\r\n'.join(lines + ['', '']).encode())
        reply = http.client.HTTPResponse(types.SimpleNamespace(makefile=lambda _: self.file))
        reply.begin()
        if reply.status != 101:
            self.refuse(reply)
        self.accepted_subprotocol = reply.getheader('sec-websocket-protocol')
        self.extra_headers = [(name.encode(), value.encode()) for name, value in reply.getheaders()
                              if name.lower() not in OF_HANDSHAKE]
        return self

    def refuse(self, reply):
        body = reply.read()
        self.socket.close()
        self.call.end()
        raise testclient.WebSocketDenialResponse(reply.status, headers=reply.getheaders(), content=body)

    def __exit__(self, *_):
        try:
            # Otherwise, the application could find a closed WebSocket before it has used the last message.
            self.call.settle(self.sent)
            self.close(1000)
            while not self.is_closed:
                self.receive()
            self.call.end()
        finally:
            self.file.raw.close()
            self.socket.close()

    def send(self, message):
        self.sent += 1
        if message['type'] == 'websocket.receive' and message.get('text') is not None:
            self.frame(TEXT, message['text'].encode())
        elif message['type'] == 'websocket.receive':
            self.frame(BINARY, message['bytes'])
        elif message['type'] == 'websocket.disconnect':
            reason = message['reason'] or ''
            self.frame(CLOSE, struct.pack('!H', message['code']) + reason.encode())
        else:
            raise AssertionError('no client can send %r' % message)

    def frame(self, opcode, data):
        """Sends a frame whose mask is zero. After the server has closed, a test may still try it."""
        size = len(data)
        length = bytes([0x80 | size]) if size < 126 else struct.pack('!BH', 0xfe, size)
        try:
            self.socket.sendall(bytes([0x80 | opcode]) + length + bytes(4) + data)
        except OSError:
            assert self.is_closed

    def receive(self):
        head = self.file.read(2)
        if len(head) < 2:
            self.is_closed = True
            self.call.end()
            return {'type': 'websocket.close', 'code': 1006}
        opcode, size = head[0] & 15, head[1]
        if size >= 126:
            size = int.from_bytes(self.file.read(2 if size == 126 else 8), 'big')
        data = self.file.read(size)
        if opcode == CLOSE:
            return self.end(int.from_bytes(data[:2], 'big'), data[2:].decode())
        if opcode == TEXT:
            return {'type': 'websocket.send', 'text': data.decode()}
        assert opcode == BINARY, opcode
        return {'type': 'websocket.send', 'bytes': data}

    def end(self, code, reason):
        """Takes a close frame. Its code is 1011 if the application has raised an exception."""
        if not self.is_closed:
            self.is_closed = True
            self.frame(CLOSE, struct.pack('!H', code))
        if code == 1011:
            self.call.end()
        return {'type': 'websocket.close', 'code': code, 'reason': reason}


def connect(scheme):
    import socket
    connection = socket.create_connection(('127.0.0.1', Transport.ports[scheme]), DEADLINE)
    if scheme == 'http':
        return connection
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(connection)
