# Replies, and requests of the type "http", for asgi.py.


class Reply:
    """A reply of HTTP/1.1, from the messages of the application."""
    # Defaults in the class cost less than attributes that each reply sets.
    head = None              # lines of the head, without its end
    size = None              # size of the body, if known
    sent = 0
    is_chunked = False
    is_bare = False          # a reply with this status has no body
    has_body = False
    has_trailers = False
    trailers = None          # lines of the trailers, after the body
    is_begun = False
    is_complete = False

    def __init__(self, connection, is_head):
        self.connection = connection
        self.is_head = is_head    # the request is HEAD

    def start(self, message):
        """Takes the head. Forebay gets it together with the first part of the body."""
        if self.head is not None:
            raise RuntimeError('http.response.start was sent twice')
        status = message['status']
        if type(status) is not int and not isinstance(status, int) or not 200 <= status <= 999:
            raise ValueError('%r is no status of a reply' % (status,))
        self.size, self.is_bare = None, status == 204 or status == 304
        self.has_body = not (self.is_head or self.is_bare)
        self.has_trailers = bool(message.get('trailers')) and self.has_body
        lines = [STATUS_LINES.get(status) or b'HTTP/1.1 %d ' % status]
        for name, value in message.get('headers', ()):
            kind = type(name) is bytes and FIELD_KINDS.get(name) or field_kind(name)
            if kind == LENGTH:
                if self.has_trailers or status == 204:
                    continue
                self.size = int(value)
            elif kind == IGNORED:
                continue    # as ASGI specifies for Transfer-Encoding
            lines.append(name + b': ' + value)
        self.head = checked(lines)

    def body(self, message):
        """Sends a part of the body, preceded by the head if it was not sent yet."""
        if self.head is None or self.trailers is not None:
            raise RuntimeError('http.response.body was not expected now')
        data = message.get('body', b'')
        if type(data) is not bytes:
            if not isinstance(data, (bytes, bytearray, memoryview)):
                raise TypeError('the body is %r, not bytes' % type(data))
            data = bytes(data)
        is_last = not message.get('more_body', False)
        size = len(data)
        if self.size is not None and self.has_body:
            self.check_size(size, is_last)
        if is_last and not self.is_begun and size <= HIGH_WATER and not self.has_trailers:
            # Most replies: a head and the whole body.
            self.is_begun = True
            head = self.head + self.framing(size, True)
            self.connection.transport.write(head + data if self.has_body else head)
            return self.complete()
        head = b''
        if not self.is_begun:
            head = self.head + self.framing(len(data), is_last)
            self.is_begun = True
        if self.has_body:
            self.sent += len(data)
            data = self.framed(data, is_last) if self.is_chunked else data
        else:
            data = b''
        write = self.connection.transport.write
        if len(data) <= HIGH_WATER:
            data = head + data
        elif head:
            write(head)    # a copy of a large body costs more than a second system call
        if data:
            write(data)
        if is_last and self.has_trailers:
            self.trailers = []
        elif is_last:
            self.complete()

    def check_size(self, more, is_last):
        size = self.sent + more
        if size > self.size or is_last and size < self.size:
            raise RuntimeError('a body of %d bytes%s, but a Content-Length of %d'
                               % (size, '' if is_last else ' or more', self.size))

    def framing(self, size, is_last):
        """Returns the end of the head. Chooses the framing of the body."""
        if self.size is not None or self.is_bare:
            return b'\r\n\r\n'
        if is_last and not self.has_trailers:
            return b'\r\nContent-Length: %d\r\n\r\n' % size
        self.is_chunked = self.has_body
        return b'\r\nTransfer-Encoding: chunked\r\n\r\n' if self.has_body else b'\r\n\r\n'

    def framed(self, data, is_last):
        end = b'0\r\n\r\n' if is_last and not self.has_trailers else b''
        return b'%x\r\n%b\r\n%b' % (len(data), data, end) if data else end

    def end(self, message):
        """Takes trailers, and sends all of them when the last ones have come."""
        if self.trailers is None:
            raise RuntimeError('http.response.trailers was not expected now')
        for name, value in message.get('headers', ()):
            self.trailers.append(name + b': ' + value)
        if not message.get('more_trailers', False):
            lines = checked([b'0'] + self.trailers)
            self.connection.transport.write(lines + b'\r\n\r\n')
            self.complete()

    def hint(self, message):
        """Sends a 103 with links to what the page needs."""
        if self.is_begun:
            raise RuntimeError('http.response.early_hint was sent after the reply has begun')
        links = [b'Link: ' + bytes(link) for link in message.get('links', ())]
        lines = checked([b'HTTP/1.1 103 Early Hints'] + links)
        self.connection.transport.write(lines + b'\r\n\r\n')

    def complete(self):
        self.is_complete = True

    def give_up(self):
        """Answers 500, or cuts the reply off so that no client takes a part for the whole."""
        if self.is_complete:
            return
        if self.is_begun:
            self.is_complete = True
            self.connection.request = None
            self.connection.transport.close()
            return
        self.head = None
        self.start({'status': 500, 'headers': [(b'Content-Type', b'text/plain; charset=utf-8')]})
        self.body({'body': b'Internal Server Error\n'})


def checked(lines):
    """Returns the lines of a head, joined. Refuses a line break or NUL within a line."""
    head = b'\r\n'.join(lines)
    breaks = len(lines) - 1
    if head.count(b'\n') != breaks or head.count(b'\r') != breaks or b'\0' in head:
        raise ValueError('a line break or a zero byte in a header field')
    return head


class Request(Reply):
    """A request of the type "http", while its application runs."""
    parts = ()               # parts of the body that the application has not received
    waiting = 0              # number of bytes in `parts`
    is_given = False         # the application has received the end of the body
    is_lost = False          # the client has disconnected
    dropped = 0              # number of messages dropped since the client disconnected
    event = None             # set when `receive` may continue
    task = None

    def __init__(self, connection, head):
        self.connection = connection
        self.is_head = head.is_head
        self.more = head.length != 0    # a part of the body follows

    async def run(self, application, scope):
        try:
            result = await application(scope, self.receive, self.send)
            if result is not None:
                raise TypeError('the application returned %r; ASGI expects None' % (result,))
            if not self.is_complete and not self.is_lost:
                raise RuntimeError('the application returned before its reply was complete')
        except asyncio.CancelledError:
            self.give_up()
        except ClientDisconnected:
            self.give_up()
        except BaseException as error:    # also SystemExit: this process has other requests
            report(error)
            self.give_up()
        finally:
            self.connection.server.ended(self)

    async def receive(self):
        if not self.is_given:
            while not self.parts and self.more and not self.is_lost and not self.is_complete:
                if not self.connection.is_reading:
                    self.connection.read(True)
                await self.change()
            if not self.is_lost and not self.is_complete:
                body = b''.join(self.parts)
                self.parts, self.waiting = (), 0
                self.is_given = not self.more
                return {'type': 'http.request', 'body': body, 'more_body': self.more}
        while not self.is_lost and not self.is_complete:
            await self.change()
        return {'type': 'http.disconnect'}

    async def send(self, message):
        if self.is_lost:
            return await self.drop()
        kind = message['type']
        if self.is_complete:
            raise RuntimeError('%r was sent after the reply was complete' % kind)
        if kind == 'http.response.start':
            return self.start(message)
        if kind == 'http.response.body':
            self.body(message)
        elif kind == 'http.response.trailers':
            self.end(message)
        elif kind == 'http.response.early_hint':
            self.hint(message)
        else:
            raise RuntimeError('%r is no message of a reply' % kind)
        connection = self.connection
        if connection.can_write is not None:
            await connection.drain()
        else:
            connection.messages += 1
            if connection.messages % MOST_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def drop(self):
        """Drops a message to a client that has disconnected."""
        self.connection.server.end_child()
        self.dropped += 1
        if self.dropped > MOST_DROPPED:
            raise ClientDisconnected('the client has closed its connection')
        await asyncio.sleep(0)

    def complete(self):
        self.is_complete = True
        self.connection.ended()
        if self.event is not None:
            self.event.set()

    async def change(self):
        """Waits for a part of the body, or for the end."""
        if self.event is None:
            self.event = asyncio.Event()
        self.event.clear()
        await self.event.wait()

    # Called by the connection.

    def feed_body(self, part, is_last):
        if part:
            if self.parts:
                self.parts.append(part)
            else:
                self.parts = [part]
            self.waiting += len(part)
        if is_last:
            self.more = False
        elif self.waiting > HIGH_WATER:
            self.connection.read(False)
        if self.event is not None:
            self.event.set()

    def feed(self, _):
        self.connection.transport.abort()    # nothing may follow before the reply is complete

    def lost(self):
        self.is_lost = self.is_complete = True
        self.parts = ()
        if self.event is not None:
            self.event.set()

    leave = lost

    def stop(self):
        pass    # the connection closes after the reply
