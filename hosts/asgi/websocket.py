# WebSockets (RFC 6455) for asgi.py.

WEBSOCKET_ASGI = {'version': '3.0', 'spec_version': '2.4'}
WEBSOCKET_EXTENSIONS = {'websocket.http.response': {}}
ACCEPT_KEY = b'258EAFA5-E914-47DA-95CA-C5AB0DC85B11'
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
# A client that sends nothing for this time gets a ping. If it then sends nothing for this time
# again, it is disconnected.
PING_SECONDS = 20
# Longest wait for the client's answer to a close frame.
CLOSE_SECONDS = 10
# Most messages that wait for the application. HIGH_WATER limits the bytes of these messages.
MOST_MESSAGES = 64
NORMAL, GOING_AWAY, PROTOCOL, NO_CODE, ABNORMAL = 1000, 1001, 1002, 1005, 1006
INVALID_TEXT, TOO_LARGE, INTERNAL, RESTART = 1007, 1009, 1011, 1012
# States. CONNECTING: the application has not answered the handshake. DENIED: the application
# answers with an HTTP reply. OPEN: messages pass. CLOSING: a close frame was sent. FAILED: the
# client broke the protocol, so its bytes are dropped. CLOSED: the connection is of no more use.
CONNECTING, DENIED, OPEN, CLOSING, FAILED, CLOSED = range(6)


class WebSocketError(Exception):
    """The client broke the protocol or a limit. The arguments are code and reason of the close
    frame."""


class WebSocket:
    """A request of the type "websocket", while its application runs."""

    def __init__(self, connection, scope, key):
        self.connection = connection
        self.key = key
        self.state = CONNECTING
        self.queue = collections.deque([{'type': 'websocket.connect'}])    # for the application
        self.waiting = 0           # number of bytes in `queue`
        self.buffer = bytearray()  # received bytes that were not parsed
        self.parts = None          # parts of a message in several frames
        self.kind = 0              # opcode of this message
        self.size = 0              # bytes of this message so far
        self.end = None            # the message websocket.disconnect
        self.denial = None
        self.event = None
        self.task = None
        self.timer = None
        self.was_heard = True      # the client has sent bytes since the last tick
        self.is_pinged = False
        names = [value for name, value in scope['headers'] if name == b'sec-websocket-protocol']
        names = b','.join(names).decode('latin-1').split(',')
        self.subprotocols = [name.strip() for name in names if name.strip()]
        scope['subprotocols'] = list(self.subprotocols)
        scope['scheme'] = 'wss' if scope['scheme'] == 'https' else 'ws'
        scope['extensions'] = WEBSOCKET_EXTENSIONS.copy()

    async def run(self, application, scope):
        try:
            result = await application(scope, self.receive, self.send)
            if result is not None:
                raise TypeError('the application returned %r; ASGI expects None' % (result,))
            if self.state == CONNECTING and self.end is None:
                raise RuntimeError('the application returned without an answer to the handshake')
            if self.state == DENIED and not self.denial.is_complete:
                raise RuntimeError('the application returned before its reply was complete')
            self.close(NORMAL)
        except asyncio.CancelledError:
            self.fail(RESTART)
        except ClientDisconnected:
            self.fail(INTERNAL)
        except BaseException as error:
            report(error)
            self.fail(INTERNAL)
        finally:
            self.connection.server.ended(self)

    def fail(self, code):
        if self.state == CONNECTING:
            self.deny(Reply(self.connection, False))
            self.denial.give_up()
            self.finish()
        elif self.state == DENIED:
            self.denial.give_up()
            self.finish()
        else:
            self.close(code)

    async def receive(self):
        while not self.queue and self.end is None:
            if self.event is None:
                self.event = asyncio.Event()
            self.event.clear()
            await self.event.wait()
        if not self.queue:
            return self.end
        message = self.queue.popleft()
        self.waiting -= len(message.get('bytes') or message.get('text') or b'')
        if not self.queue and not self.connection.is_reading:
            self.parse()
            self.connection.read(not self.is_full())
        return message

    async def send(self, message):
        kind = message['type']
        if self.state == OPEN and kind == 'websocket.send':
            data = message.get('bytes')
            if data is not None:
                self.write(BINARY, bytes(data))
            else:
                self.write(TEXT, message['text'].encode())
        elif self.state == OPEN and kind == 'websocket.close':
            self.close(message.get('code', NORMAL), message.get('reason') or '')
        elif self.end is not None:
            self.connection.server.end_child()
            raise ClientDisconnected('the client has closed its connection')
        elif self.state == CONNECTING:
            self.answer(kind, message)
        elif self.state == DENIED and kind == 'websocket.http.response.body':
            self.denial.body(message)
            if self.denial.is_complete:
                self.finish()
        else:
            raise RuntimeError('%r was not expected now' % kind)
        connection = self.connection
        if connection.can_write is not None:
            await connection.drain()
        else:
            connection.messages += 1
            if connection.messages % MOST_AT_ONCE == 0:
                await asyncio.sleep(0)

    def answer(self, kind, message):
        """Answers the handshake."""
        if kind == 'websocket.accept':
            self.accept(message)
        elif kind == 'websocket.http.response.start':
            reply = Reply(self.connection, False)
            reply.start(message)
            self.deny(reply)
        elif kind == 'websocket.close':
            self.deny(Reply(self.connection, False))
            self.denial.start({'status': 403, 'headers': []})
            self.denial.body({'body': b''})
            self.finish()
        else:
            raise RuntimeError('%r was not expected before websocket.accept' % kind)

    def accept(self, message):
        digest = hashlib.sha1(self.key + ACCEPT_KEY).digest()
        lines = [b'HTTP/1.1 101 Switching Protocols', b'Upgrade: websocket',
                 b'Connection: upgrade', b'Sec-WebSocket-Accept: ' + base64.b64encode(digest)]
        chosen = message.get('subprotocol')
        if chosen:
            if chosen not in self.subprotocols:
                raise ValueError('the client has not offered the subprotocol %r' % chosen)
            lines.append(b'Sec-WebSocket-Protocol: ' + chosen.encode('latin-1'))
        for name, value in message.get('headers') or ():
            lowered = name.lower()
            if lowered in (b'sec-websocket-extensions', b'sec-websocket-accept'):
                raise ValueError('%r is for the server to send' % name)
            if lowered not in HOP_BY_HOP and lowered != b'content-length':
                lines.append(name + b': ' + value)
        self.connection.transport.write(checked(lines) + b'\r\n\r\n')
        self.state = OPEN
        self.timer = self.connection.server.loop.call_later(PING_SECONDS, self.tick)
        if self.buffer:
            self.feed(b'')

    def deny(self, reply):
        self.state, self.denial = DENIED, reply

    def write(self, opcode, data):
        size = len(data)
        if size < 126:
            head = bytes((0x80 | opcode, size))
        elif size < 65536:
            head = bytes((0x80 | opcode, 126)) + size.to_bytes(2, 'big')
        else:
            head = bytes((0x80 | opcode, 127)) + size.to_bytes(8, 'big')
        self.connection.transport.write(head + data)

    def close(self, code, reason=''):
        """Sends a close frame, and waits for the client's close frame: up to CLOSE_SECONDS."""
        if self.state != OPEN:
            return
        code = int(code)
        if code != NO_CODE and not may_close_with(code):
            raise ValueError(f'a WebSocket cannot be closed with code {code}')
        self.state = CLOSING
        if code == NO_CODE:
            self.write(CLOSE, b'')
        else:
            reason = reason.encode()[:123].decode(errors='ignore').encode()
            self.write(CLOSE, code.to_bytes(2, 'big') + reason)
        self.disconnect(code, reason.decode() if code != NO_CODE else '')
        self.buffer.clear()
        self.connection.read(True)
        self.set_timer(CLOSE_SECONDS, self.finish)

    def finish(self):
        """Closes the connection after all output was sent."""
        self.state = CLOSED
        self.set_timer(None, None)
        self.disconnect(ABNORMAL)
        self.connection.transport.close()

    def disconnect(self, code, reason=''):
        """Ends the messages to the application with websocket.disconnect."""
        if self.end is None:
            self.end = {'type': 'websocket.disconnect', 'code': code, 'reason': reason}
        if self.event is not None:
            self.event.set()

    def set_timer(self, seconds, call):
        if self.timer is not None:
            self.timer.cancel()
        loop = self.connection.server.loop
        self.timer = None if seconds is None else loop.call_later(seconds, call)

    def tick(self):
        """Sends a ping to a client that was silent. Disconnects a client that has not answered
        the last ping."""
        if self.was_heard or not self.connection.is_reading:
            self.is_pinged = False
        elif self.is_pinged:
            self.disconnect(INTERNAL, 'the client did not answer a ping')
            return self.finish()
        else:
            self.is_pinged = True
            self.write(PING, b'')
        self.was_heard = False
        self.timer = self.connection.server.loop.call_later(PING_SECONDS, self.tick)

    # Called by the connection.

    def feed(self, data):
        self.was_heard = True
        self.buffer += data
        if self.state == CONNECTING or self.state == DENIED:
            if len(self.buffer) > HIGH_WATER:
                self.connection.transport.abort()
            return
        self.parse()
        if self.is_full():
            self.connection.read(False)

    def is_full(self):
        return self.waiting > HIGH_WATER or len(self.queue) > MOST_MESSAGES

    def parse(self):
        """Reads the frames of the buffer, until enough messages wait for the application."""
        try:
            while not self.is_full() and self.take_frame():
                pass
        except WebSocketError as error:
            self.close(*error.args)
            # A reset connection would keep the client from reading the close frame. So this host
            # reads the client's bytes until the client closes, too.
            self.state = FAILED
            self.connection.transport.write_eof()
        if self.state >= FAILED:
            self.buffer.clear()

    def take_frame(self):
        """Reads one frame of the buffer. Returns false if it is not whole yet."""
        buffer = self.buffer
        if len(buffer) < 2 or self.state >= FAILED:
            return False
        opcode, size, at = buffer[0] & 15, buffer[1] & 127, 2
        if buffer[0] & 0x70 or not buffer[1] & 0x80:
            raise WebSocketError(PROTOCOL, 'reserved bits are set, or the mask is missing')
        if opcode >= CLOSE and (size > 125 or not buffer[0] & 0x80):
            raise WebSocketError(PROTOCOL, 'a control frame that is too long or has parts')
        if size > 125:
            at = 4 if size == 126 else 10
            if len(buffer) < at:
                return False
            size = int.from_bytes(buffer[2:at], 'big')
        is_data = opcode < CLOSE
        if is_data and size + self.size > self.connection.server.max_message:
            raise WebSocketError(TOO_LARGE, 'the message is too large')
        end = at + 4 + size
        if len(buffer) < end:
            return False
        data = unmask(buffer[at + 4:end], buffer[at:at + 4]) if size else b''
        is_last = buffer[0] & 0x80
        del buffer[:end]
        if self.state == OPEN and is_data:
            self.take_data(opcode, data, is_last)
        else:
            self.take_control(opcode, data)
        return True

    def take_data(self, opcode, data, is_last):
        if opcode > BINARY or (opcode == CONTINUATION) != (self.parts is not None):
            raise WebSocketError(PROTOCOL, 'a frame that was not expected')
        if opcode != CONTINUATION:
            self.kind, self.parts = opcode, []
        self.parts.append(data)
        self.size += len(data)
        if not is_last:
            # Joins many parts, so that endless empty frames do not fill the memory.
            if len(self.parts) > MOST_MESSAGES:
                self.parts = [b''.join(self.parts)]
            return
        data = b''.join(self.parts) if len(self.parts) > 1 else self.parts[0]
        self.parts, self.size = None, 0
        if self.kind == TEXT:
            message = {'type': 'websocket.receive', 'text': text_of(data)}
        else:
            message = {'type': 'websocket.receive', 'bytes': data}
        self.waiting += len(message.get('text') or data)
        self.queue.append(message)
        if self.event is not None:
            self.event.set()

    def take_control(self, opcode, data):
        if opcode == CLOSE:
            code, reason = close_of(data)
            if self.state == OPEN:
                self.write(CLOSE, data)
                self.disconnect(code, reason)
            self.finish()
        elif opcode == PING:
            # A client that does not read gets no answers to pings, because the answers would fill
            # the memory.
            if self.state == OPEN and self.connection.can_write is None:
                self.write(PONG, data)
        elif opcode > PONG:
            raise WebSocketError(PROTOCOL, 'an unknown kind of frame')

    def feed_body(self, part, is_last):
        self.connection.transport.abort()    # a handshake has no body

    def lost(self):
        self.state = CLOSED
        self.set_timer(None, None)
        self.disconnect(ABNORMAL)

    leave = lost

    def stop(self):
        if self.state == OPEN:
            self.close(RESTART)


def unmask(data, key):
    size = len(data)
    mask = (key * (size // 4 + 1))[:size]
    number = int.from_bytes(data, 'big') ^ int.from_bytes(mask, 'big')
    return number.to_bytes(size, 'big')


def text_of(data):
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise WebSocketError(INVALID_TEXT, 'the text is not UTF-8') from None


def may_close_with(code):
    """Returns true if a close frame may have this code (RFC 6455 section 7.4)."""
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999


def close_of(data):
    """Returns code and reason of a close frame."""
    if not data:
        return NO_CODE, ''
    code = int.from_bytes(data[:2], 'big')
    if len(data) < 2 or not may_close_with(code):
        raise WebSocketError(PROTOCOL, 'a close frame without a valid code')
    return code, text_of(data[2:])


if __name__ == '__main__':
    raise SystemExit(main(*sys.argv[1:]))
