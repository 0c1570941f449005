# Forebay's host for WSGI applications (PEP 3333): a worker that calls one application for one
# request after another. It needs only the standard library of Python 3.8 to 3.14. It is no web
# server: Forebay (crates/forebay-workers) starts it, sends it requests and reads the application's
# replies.
#
# Descriptors at the start: 0 the control socket, 1 the output socket, 2 a pipe to the log, 3 the
# prefetch queue. PROTOCOL.md describes the protocol on the sockets. python-inbox.py, which Forebay
# appends to this file, receives requests. The reply has the form of a CGI reply: header lines with
# Status, an empty line, the body. The host moves the sockets to other numbers at once. The
# application's descriptor 0 is /dev/null and its descriptor 1 is the log, so that a print() cannot
# reach a reply.
import _thread
import gc
import importlib
import io
import os
import select
import signal
import struct
import sys

HEAD = 28
CHUNK = 65536
MUCH = 65536    # bytes of output; twice as many could block until Forebay reads
LAY_THERE = 4
LARGEST_IN_MEMORY = 1 << 20
PR_SET_PDEATHSIG = 1
MADV_WIPEONFORK = 18
HOP_BY_HOP = frozenset(
    'connection keep-alive proxy-authenticate proxy-authorization te trailer trailers '
    'transfer-encoding upgrade'.split())
# Names of header fields that have passed the check; true for Content-Length.
FIELD_NAMES = {}
# Statuses that have passed the check; true if the reply has no body.
STATUSES = {}
# Heads that have passed the checks, by status and fields: lines, Content-Length, true without a body.
HEADS = {}
LONGEST_HEAD = 1024
MOST_NAMES = 256
# Environments that are kept, by their bytes. Clients that poll send the same request each time.
MOST_KEPT = 256
LONGEST_KEPT = 2048


def serve(name, parent):
    """Serves requests until Forebay closes the control socket. Returns the exit code of this
    process. `name`: "module:callable", both of which may have dots, "module:factory()", or
    "/path/of/file:callable"."""
    end_with(int(parent))
    inbox, output = Inbox(), os.dup(1)
    descriptors = Descriptors(inbox, output)
    os.register_at_fork(after_in_child=descriptors.leave)
    null = os.open('/dev/null', os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    sys.stdout.reconfigure(line_buffering=True)
    sys.argv = [name]
    sys.path[:] = [os.getcwd()] + [entry for entry in sys.path if entry]
    try:
        application = find(name)
    except BaseException as error:
        log_error('cannot load the application %s:' % name)
        report(error)    # its last line names the error
        return 1
    inbox.ready()
    gc.collect()
    gc.freeze()    # loaded objects stay, so collections can skip them
    if 'ProvingWorker' in globals():
        worker = ProvingWorker(application, inbox, output, descriptors, name)
    else:
        worker = Worker(application, inbox, output)
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, worker.abort)
    while worker.answer():
        pass
    return 0


class Descriptors:
    """The worker's own descriptors. A child that the application forks closes them, so that it
    cannot write into a reply. A program that it executes does not inherit them (PEP 446)."""

    def __init__(self, inbox, output):
        self.inbox, self.output = inbox, output

    def leave(self):
        if self.inbox is not None:
            self.inbox.close()
            os.close(self.output)
            self.inbox = None    # a grandchild has other files at these numbers


def end_with(parent):
    """Asks the kernel to end this process when Forebay ends, for whatever reason."""
    try:
        import ctypes
        ctypes.PyDLL(None).prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0)
    except (ImportError, AttributeError, OSError):
        pass    # without ctypes, the interpreter ends when its control socket closes
    if os.getppid() != parent:
        os._exit(0)


def find(name):
    module, _, path = name.rpartition(':')
    is_factory = path.endswith('()')
    found = run_file(module) if module.startswith('/') else importlib.import_module(module)
    for part in path[:-2 if is_factory else None].split('.'):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise AttributeError('%s has no %r; module is "MODULE:CALLABLE"' % (found, part)) from None
    if is_factory:
        found = found()
    if not callable(found):
        raise TypeError('%s is %r, which cannot be called' % (name, found))
    return found


def run_file(path):
    """Returns a module with the names of a file such as trac.wsgi, whose name no import finds."""
    module = sys.modules['forebay_application'] = type(sys)('forebay_application')
    module.__file__ = path
    with open(path, 'rb') as source:
        exec(compile(source.read(), path, 'exec', dont_inherit=True), module.__dict__)
    return module


def report(error, frames=1):
    """Logs an exception, without the frames of this host."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None and frames:
        traceback, frames = traceback.tb_next, frames - 1
    error.__traceback__ = traceback
    try:
        show(error, traceback)
        sys.stderr.flush()
    except Exception:
        log_error('%s, which cannot be shown' % type(error))


def fork_flag():
    """Returns bytes. The first byte is 1 in this process, and 0 in each child that it forks, even if
    C code forks. Unlike os.getpid(), a look at this byte costs no system call."""
    import mmap
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    page[0] = 1
    try:
        page.madvise(MADV_WIPEONFORK)
        return page
    except OSError:
        return ProcessId()    # before Linux 4.14


class ProcessId:
    def __init__(self):
        self.pid = os.getpid()

    def __getitem__(self, _):
        return os.getpid() == self.pid


class Aborted(BaseException):
    """Ends a request whose client has left (on_abort = "stop"), so that its close() is called."""


class Worker:
    runs = False    # true while the application runs

    def __init__(self, application, inbox, output):
        self.application, self.inbox, self.output = application, inbox, output
        self.is_own = fork_flag()
        # A thread holds the lock while it writes. The lock is reentrant, because a signal handler
        # may write during a write.
        self.lock = _thread.RLock()
        self.base = {
            'wsgi.version': (1, 0), 'wsgi.multithread': False, 'wsgi.multiprocess': True,
            'wsgi.run_once': False, 'wsgi.file_wrapper': FileWrapper,
            'wsgi.input_terminated': True,
        }
        self.known = {}    # environments by their bytes

    def answer(self):
        """Answers one request. Returns false if this process has to end."""
        request = self.inbox.receive()
        if request is None:
            return False
        block, length, part = request
        body = self.body(length, part) if length else io.BytesIO()
        reply = Reply(self)
        status = 500
        try:
            environ = self.environ(block)
            environ['wsgi.input'] = body
            self.runs = True
            try:
                run(self.application, environ, reply)
            finally:
                self.runs = False
            status = 0
        except Aborted:
            self.end_fork()
            end_by_signal()
        except SystemExit as exit:
            self.end_fork()
            reply.close()
            if reply.is_begun:
                self.give_up()
            log_error('the application ended itself (%s)' % exit)
            return self.finish((), 500, True)
        except BaseException as error:
            report(error, 2)
            self.end_fork()
            reply.close()
            if reply.is_begun:
                self.give_up()    # a client must not take a partial reply for a complete one
        finally:
            self.end_fork()
            reply.close()    # before the reply of the next client begins
            body.close()
        return self.finish(reply.held, status, False)

    def abort(self, *_):
        """Handles SIGTERM, which Forebay sends to the worker of a client that has left."""
        if not self.runs or not self.is_own[0]:
            end_by_signal()
        self.runs = False
        raise Aborted

    def end_fork(self):
        """Ends this process if the application has forked it: only the worker writes to Forebay."""
        if not self.is_own[0]:
            os._exit(0)

    def finish(self, held, status, ends):
        """Sends the end of the request, after the part of the reply that was held back."""
        marker = self.inbox.end_marker(b'S' if status else b'E', ends, status)
        send(self.output, b''.join((*held, marker)))
        return not ends

    def give_up(self):
        """Ends this process in the middle of a reply, so that Forebay resets the connection."""
        try:
            sys.stderr.flush()
        finally:
            os._exit(1)

    def body(self, length, part):
        """Returns the whole body: the application may write its reply before it reads."""
        if length <= LARGEST_IN_MEMORY:
            body = io.BytesIO()
        else:
            import tempfile
            body = tempfile.TemporaryFile()
        fault = None
        while True:
            length -= len(part)
            try:
                fault or body.write(part)
            except OSError as error:
                fault = error
            if length <= 0:
                break
            part = self.inbox.read(min(length, CHUNK))
            if not part:
                os._exit(0)    # Forebay has ended
        if fault:
            log_error('cannot store the request body: %s' % fault)
            return Unreadable()
        body.seek(0)
        return body

    def environ(self, block):
        """Returns the environment that PEP 3333 requires. Each byte becomes the character with the
        same number."""
        environ = self.known.get(block)
        if environ is None:
            fields = block.decode('latin-1').split('\0')
            environ = dict(zip(fields[0:-1:2], fields[1::2]))
            environ.setdefault('PATH_INFO', '')
            environ.update(self.base)
            environ['wsgi.url_scheme'] = 'https' if environ.get('HTTPS') == 'on' else 'http'
            if len(block) <= LONGEST_KEPT:
                if len(self.known) >= MOST_KEPT:
                    self.known.clear()
                self.known[block] = environ
        environ = environ.copy()
        environ['wsgi.errors'] = sys.stderr
        return environ


def end_by_signal():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


class Unreadable(io.BytesIO):
    """The body of a request that could not be stored."""

    def read(self, *_):
        raise OSError('the request body could not be stored')

    readline = readlines = readinto = __next__ = read


def run(application, environ, reply):
    """Runs one request: calls the application and sends its reply."""
    if environ['REQUEST_METHOD'] == 'HEAD':
        reply.has_body = False
    result = application(environ, reply.start)
    # Only a plain list can be held back. Other results may have a close(), which could take long.
    if type(result) is list and len(result) == 1 and reply.hold(result[0]):
        return
    try:
        if isinstance(result, FileWrapper) and result.is_file() and reply.send_file(result):
            return
        is_whole = hasattr(result, '__len__') and len(result) == 1
        for piece in result:
            if is_whole and reply.size is None and not reply.is_begun:
                reply.size = len(piece)
            if piece:
                reply.write(piece)
        reply.end()
    finally:
        if hasattr(result, 'close'):
            result.close()


class FileWrapper:
    """wsgi.file_wrapper. The kernel sends the file if it has a descriptor."""

    def __init__(self, file, block_size=CHUNK):
        self.file, self.block_size = file, block_size
        if hasattr(file, 'close'):
            self.close = file.close

    def __iter__(self):
        return self

    def __next__(self):
        piece = self.file.read(self.block_size)
        if not piece:
            raise StopIteration
        return piece

    def is_file(self):
        try:
            self.file.fileno()
            self.file.tell()
            return isinstance(self.file, (io.BufferedReader, io.BufferedRandom, io.FileIO))
        except (AttributeError, OSError, ValueError):
            return False


class Reply:
    # Defaults in the class cost less than attributes that each reply sets.
    head = None             # header lines without the end, after start_response
    held = ()               # parts of a whole reply, which is sent together with the end marker
    size = None             # of the body, if known
    has_length = False      # the application has set Content-Length
    sent = 0
    unsaid = 0              # bytes written; after MUCH bytes Forebay watches the socket
    is_begun = False
    is_over = False         # later output would go to the next client
    # True after `write` was called, perhaps by another thread. Without a GIL, this is always true,
    # because threads may see stores in another order. `close` then takes the lock each time.
    is_written = not getattr(sys, '_is_gil_enabled', lambda: True)()
    has_body = True
    is_bare = False         # the status has no body

    def __init__(self, worker):
        self.worker, self.output = worker, worker.output

    def start(self, status, headers, exc_info=None):
        """start_response."""
        if exc_info:
            try:
                if self.is_begun:
                    raise exc_info[1].with_traceback(exc_info[2])
            finally:
                exc_info = None
        elif self.head is not None:
            raise AssertionError('start_response was called twice, without exc_info')
        try:
            key = status, *headers
            known = HEADS.get(key)
        except TypeError:    # fields that are lists
            key = known = None
        self.head, self.size, self.is_bare = known or checked_head(status, headers, key)
        self.has_length = self.size is not None
        if self.is_bare:
            self.has_body = False
        return self.write

    def write(self, data):
        """Sends a piece of the body, preceded by the head if it was not sent yet."""
        if type(data) is not bytes and not isinstance(data, (bytes, bytearray, memoryview)):
            raise AssertionError('%r is not bytes' % type(data))
        self.check_process()
        # Set `is_written` first: `close` reads it after it has set `is_over`, and `write_piece` reads
        # `is_over` later. So either `close` waits for the lock, or `write_piece` refuses.
        self.is_written = True
        with self.worker.lock:
            self.write_piece(data)

    def close(self):
        """Refuses later writes, and waits for one that is under way in another thread. That write
        lasts as long as the client needs to read it, at most until `request_timeout`."""
        self.is_over = True    # first, because a thread that writes on and on keeps the lock
        if self.is_written:
            with self.worker.lock:
                pass

    def hold(self, data):
        """Holds back a whole reply, until the end of the request. Returns false if `data` is not
        the whole reply, or is large."""
        size = len(data) if type(data) is bytes else MUCH
        if (self.is_begun or self.head is None or size > MUCH // 2 or self.is_bare
                or self.size is not None and self.size != size):
            return False
        self.size = self.sent = size
        self.held = self.take_head(), data if self.has_body else b''
        return True

    def write_piece(self, data):
        self.check_owner()
        if not data:
            return
        if self.size is not None and self.sent + len(data) > self.size:
            data = data[:self.size - self.sent]
            log_error('the body is longer than the Content-Length of %d; the rest is dropped'
                     % self.size)
        self.sent += len(data)
        if not self.is_begun:
            data = self.take_head() + (data if self.has_body else b'')
        elif not self.has_body:
            return
        self.put(data)

    def put(self, data, sent=0):
        """Writes `data`, after `sent` bytes that were already written. Wakes Forebay once the total
        exceeds MUCH."""
        before = self.unsaid
        self.unsaid += sent + len(data)
        if before <= MUCH < self.unsaid:
            send(self.output, data[:MUCH])
            self.worker.inbox.say_waiting()
            data = memoryview(data)[MUCH:]
        send(self.output, data)

    def check_owner(self):
        if self.is_over:
            raise AssertionError('write was called after the end of its request')
        self.check_process()

    def check_process(self):
        if not self.worker.is_own[0]:
            raise AssertionError('a process that the application has forked has no reply to write')

    def take_head(self):
        self.check_owner()
        if self.head is None:
            raise AssertionError('start_response was not called before the body')
        self.is_begun = True
        if self.size is None or self.has_length:
            return self.head + b'\r\n\r\n'
        return b'%b\r\nContent-Length: %d\r\n\r\n' % (self.head, self.size)

    def send_file(self, wrapper):
        """Sends the rest of a file. Returns false if the kernel cannot."""
        file = wrapper.file
        at = file.tell()
        left = os.fstat(file.fileno()).st_size - at
        if left <= 0 or self.head is None:
            return False
        if self.size is None:
            self.size = left
        left = min(left, self.size)
        self.put(self.take_head())
        while left > 0 and self.has_body:
            try:
                most = left if self.unsaid > MUCH else min(left, MUCH)
                sent = os.sendfile(self.output, file.fileno(), at, most)
                if self.unsaid <= MUCH:
                    self.put(b'', sent)
            except OSError:
                if self.sent:
                    raise
                file.seek(at)
                for piece in iter(lambda: file.read(min(left, CHUNK)), b''):
                    self.sent += len(piece)
                    left -= len(piece)
                    self.put(piece)
                break
            if not sent:
                break    # the file has become shorter
            self.sent, at, left = self.sent + sent, at + sent, left - sent
        self.end()
        return True

    def end(self):
        """Ends the reply after the application's last piece."""
        if not self.is_begun:
            if self.size is None:
                self.size = 0
            if self.size and self.has_body:
                raise AssertionError('no body, but a Content-Length of %d' % self.size)
            if not self.has_body:
                self.size = None
            send(self.output, self.take_head())
        elif self.has_body and self.size is not None and self.sent < self.size:
            raise AssertionError(
                'a body of %d bytes, but a Content-Length of %d' % (self.sent, self.size))


def checked_head(status, headers, key):
    """Returns the header lines, the Content-Length or None, and true for a status without a body.
    Remembers them by `key`, unless it is None."""
    is_bare = STATUSES.get(status) if type(status) is str else None
    if is_bare is None:
        is_bare = check_status(status)
    size, head = None, 'Status: ' + status
    for name, value in headers:
        head += '\r\n' + name + ': ' + value
        is_length = FIELD_NAMES.get(name)
        if is_length is None:
            is_length = check_name(name)
        if is_length:
            size = int(value)
    breaks = len(headers)
    if head.count('\n') != breaks or head.count('\r') != breaks or '\0' in head:
        raise AssertionError('a line break in the status or in a header field')
    known = head.encode('latin-1'), size, is_bare
    if key is not None and len(head) <= LONGEST_HEAD:
        remember(HEADS, key, known)
    return known


def check_status(status):
    """Returns true for a status without a body. Refuses a text that is no status, and remembers each
    status."""
    if type(status) is not str or not status[:3].isdigit() or status[3:4] not in (' ', ''):
        raise AssertionError('%r is no status such as "200 OK"' % (status,))
    if status[:1] == '1':
        raise AssertionError('%r is no final status' % status)
    return remember(STATUSES, status, status[:3] in ('204', '304'))


def check_name(name):
    """Returns true for Content-Length. Refuses a name that an application's field cannot have, and
    remembers all others."""
    lowered = name.lower()
    if lowered in HOP_BY_HOP:
        raise AssertionError('%s is for the server to send, not the application' % name)
    if not name or ':' in name or lowered == 'status':
        raise AssertionError('%r is no name of a header field' % name)
    return remember(FIELD_NAMES, name, lowered == 'content-length')


def remember(known, key, value):
    if len(known) < MOST_NAMES:
        known[key] = value
    return value


def send(output, data):
    sent = os.write(output, data) if data else 0
    while sent < len(data):
        data = memoryview(data)[sent:]
        sent = os.write(output, data)
