# The connections of asgi.py and the requests on them.

HTTP_ASGI = {'version': '3.0', 'spec_version': '2.3'}
HTTP_EXTENSIONS = {'http.response.trailers': {}, 'http.response.early_hint': {}}
# Fields about the connection between Forebay and the client, which Forebay sends itself.
HOP_BY_HOP = frozenset((
    b'connection', b'keep-alive', b'proxy-connection', b'te', b'transfer-encoding', b'upgrade'))
# Kinds of fields of replies, by the names that applications have used.
PLAIN, LENGTH, IGNORED = 1, 2, 3
FIELD_KINDS = {}
CHUNKED = -1
# Limits of the parsed heads and scope lines that are kept. Clients that poll send the same head
# each time.
MOST_KEPT = 256
LONGEST_KEPT = 2048
# Number of messages to a disconnected client that are dropped. The next message raises an
# exception, so that an endless stream ends.
MOST_DROPPED = 100
# After this many messages of a connection, `send` lets other requests run. Otherwise, an endless
# reply that the gateway reads fast would never wait, and no other request of this process would
# run.
MOST_AT_ONCE = 64
STATUS_LINES = {status.value: b'HTTP/1.1 %d %s' % (status.value, status.phrase.encode())
                for status in http.HTTPStatus}


class ClientDisconnected(OSError):
    """The client has closed its connection."""


class Head:
    """A parsed head, which all requests with the same bytes share."""
    __slots__ = 'scope', 'length', 'is_websocket', 'is_current', 'key', 'is_head'

    def __init__(self, head):
        lines = head.split(b'\r\n')
        method, target, _ = lines[0].split(b' ')
        headers, self.length, upgrade, version, self.key = [], 0, b'', b'', b''
        for line in lines[1:]:
            name, _, value = line.partition(b':')
            name, value = name.lower(), value.strip(b' \t')
            if name == b'connection' and value.lower() == b'te':
                continue    # Forebay sends this itself, for trailers
            headers.append((name, value))
            if name == b'content-length':
                self.length = int(value)
            elif name == b'transfer-encoding':
                self.length = CHUNKED
            elif name == b'upgrade':
                upgrade = value.lower()
            elif name == b'sec-websocket-version':
                version = value
            elif name == b'sec-websocket-key':
                self.key = value
        # Requests for other upgrades are treated as plain requests.
        self.is_websocket = upgrade == b'websocket' and method == b'GET'
        self.is_current = version == b'13' and self.key != b''    # RFC 6455 section 4.2.1
        self.is_head = method == b'HEAD'
        raw_path, _, query = target.partition(b'?')
        path = raw_path.decode('latin-1')
        self.scope = {
            'type': 'http', 'asgi': HTTP_ASGI, 'method': method.decode(),
            'path': unquote(path) if '%' in path else path,
            'raw_path': raw_path, 'query_string': query, 'headers': headers,
        }
        if self.is_websocket:
            self.scope.update(type='websocket', asgi=WEBSOCKET_ASGI)
            del self.scope['method']


def read_line(line):
    """Returns the parts of the scope that a scope line has: scheme, version of HTTP, address and
    port of client and server, and the mount point."""
    scheme, version, client, port, address, server_port, mount = line.decode().split(' ')
    return {
        'scheme': scheme, 'http_version': version, 'root_path': unquote(mount),
        'client': None if client == '-' else (client, int(port)),
        'server': (address, int(server_port)),
    }


def kept(known, key, make):
    """Returns the value for the bytes `key`: a known one, or one that `make` makes now."""
    found = known.get(key)
    if found is None:
        found = make(key)
        if len(key) <= LONGEST_KEPT:
            keep(known, key, found)
    return found


def keep(known, key, value):
    if len(known) >= MOST_KEPT:
        known.clear()
    known[key] = value


def field_kind(name):
    """Returns the kind of a reply's field, and remembers it."""
    lowered = name.lower()
    kind = IGNORED if lowered in HOP_BY_HOP else LENGTH if lowered == b'content-length' else PLAIN
    if type(name) is bytes and len(FIELD_KINDS) < MOST_KEPT:
        FIELD_KINDS[name] = kind
    return kind


class Connection(asyncio.Protocol):
    """A connection of the gateway, which has at most one request under way."""

    def __init__(self, server):
        self.server = server
        self.transport = None
        self.descriptor = -1
        self.request = None        # the current request
        self.pending = b''         # bytes that were received and not yet used
        self.left = 0              # bytes of the body, or of its current chunk, that follow
        self.is_chunked = False
        self.is_reading = True
        self.can_write = None      # future, while the gateway does not read more
        self.messages = 0          # number of messages that were sent

    # Called by the event loop.

    def connection_made(self, transport):
        self.transport = transport
        self.descriptor = transport.get_extra_info('socket').fileno()
        self.server.connections.add(self)
        if self.server.is_stopping:
            transport.close()

    def connection_lost(self, _):
        self.server.connections.discard(self)
        self.resume_writing()
        request, self.request = self.request, None
        if request is not None:
            request.lost()

    def data_received(self, data):
        if self.pending:
            data, self.pending = self.pending + data, b''
        if self.left > 0 or self.is_chunked:
            data = self.take_body(data)
        elif self.request is not None:
            return self.request.feed(data)    # a WebSocket
        if data:
            self.begin(data)

    def pause_writing(self):
        if self.can_write is None:
            self.can_write = self.server.loop.create_future()

    def resume_writing(self):
        waiting, self.can_write = self.can_write, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    # Called by requests.

    async def drain(self):
        """Waits until the gateway has taken most of what was written."""
        while self.can_write is not None:
            await asyncio.shield(self.can_write)

    def read(self, wanted):
        """Resumes or pauses reading, so that few received bytes wait."""
        if wanted != self.is_reading and not self.transport.is_closing():
            self.is_reading = wanted
            self.transport.resume_reading() if wanted else self.transport.pause_reading()

    def ended(self):
        """Lets the next request begin after a complete reply. Drops the rest of the request's
        body."""
        self.request = None
        if not self.is_reading:
            self.read(True)
        if self.server.is_stopping:
            self.transport.close()

    def stop(self):
        """Closes the connection after its request."""
        if self.request is None:
            self.transport.close()
        else:
            self.request.stop()

    def leave(self):
        """Forgets the connection, in a child that the application has forked."""
        if self.request is not None:
            self.request.leave()

    # Parses requests, which the gateway has already checked.

    def begin(self, data):
        end = data.find(b'\r\n\r\n')
        if end < 0 or self.request is not None:
            self.pending = data
            if len(data) > LONGEST_HEAD or self.request is not None:
                self.transport.abort()
            return
        server = self.server
        known = server.requests.get(data) if len(data) <= LONGEST_KEPT else None
        if known is None:
            known = self.parse(data, end)
        head, scope = known
        scope = scope.copy()
        scope['headers'] = scope['headers'].copy()
        scope['state'] = server.state.copy()
        data = data[end + 4:]
        self.left, self.is_chunked = max(head.length, 0), head.length == CHUNKED
        if head.is_websocket and not head.is_current:
            return self.refuse_version()
        if head.is_websocket:
            request = WebSocket(self, scope, head.key)
        else:
            scope['extensions'] = HTTP_EXTENSIONS.copy()
            request = Request(self, head)
        self.request = request
        if data and self.is_body_left():
            self.take_body(data)
        server.running.add(request)
        request.task = server.loop.create_task(request.run(server.application, scope))

    def parse(self, data, end):
        """Returns the head that ends at `end`, and the scope of its request."""
        server, cut = self.server, data.index(b'\n') + 1
        line = kept(server.lines, data[:cut - 2], read_line)
        head = kept(server.heads, data[cut:end], Head)
        known = head, {**head.scope, **line}
        if end + 4 == len(data) <= LONGEST_KEPT:    # nothing follows the head
            keep(server.requests, data, known)
        return known

    def refuse_version(self):
        """Refuses a WebSocket of another version (RFC 6455 section 4.4)."""
        reply = Reply(self, False)
        reply.start({'status': 426, 'headers': [
            (b'Upgrade', b'websocket'), (b'Sec-WebSocket-Version', b'13')]})
        reply.body({'body': b'This server speaks version 13 of WebSocket\n'})
        self.transport.close()

    def is_body_left(self):
        return self.left > 0 or self.is_chunked

    def take_body(self, data):
        """Passes the body in `data` to the request, or drops it if the reply is complete.
        Returns the bytes after the body."""
        request = self.request
        if not self.is_chunked:
            part, rest = data[:self.left], data[self.left:]
            self.left -= len(part)
            if request is not None:
                request.feed_body(part, self.left == 0)
            return rest
        parts = []
        data = self.take_chunks(data, parts)
        if request is not None:
            request.feed_body(b''.join(parts), not self.is_chunked)
        return data

    def take_chunks(self, data, parts):
        """Appends the content of chunks to `parts`. Keeps an incomplete end for the next call.
        Returns the bytes after the body."""
        at = 0
        while True:
            if self.left > 0:    # bytes of a chunk, with the line break after it
                part = data[at:at + max(self.left - 2, 0)]
                parts.append(part)
                at, self.left = at + len(part), self.left - len(part)
                skipped = min(self.left, len(data) - at) if self.left <= 2 else 0
                at, self.left = at + skipped, self.left - skipped
                if self.left > 0:
                    return b''
            end = data.find(b'\r\n', at)
            if end < 0:
                self.pending = data[at:]
                return b''
            size = int(data[at:end].split(b';')[0], 16)
            if size > 0:
                self.left, at = size + 2, end + 2
                continue
            # ASGI has no trailers of requests, so they are skipped.
            if data[end + 2:end + 4] == b'\r\n':
                end += 4
            else:
                last = data.find(b'\r\n\r\n', end)
                if last < 0:
                    self.pending = data[at:]
                    return b''
                end = last + 4
            self.is_chunked = False
            return data[end:]
