# Forebay's host for ASGI applications (ASGI 3): a program that runs many requests at once on one
# event loop. It needs only the standard library of Python 3.8 to 3.14, and uses uvloop if that can
# be imported. It is no web server for clients: Forebay (crates/forebay-workers) starts it, checks
# what clients send, and connects to its Unix socket.
#
# Each running request has its own connection, so bytes of one request cannot enter the reply of
# another. A connection carries one request after another: a scope line, which PROTOCOL.md
# describes, and an HTTP/1.1 request. Forebay appends the files of asgi/ to this file.
import asyncio
import base64
import collections
import gc
import hashlib
import http
import importlib
import os
import signal
import sys
import threading
from urllib.parse import unquote, unquote_to_bytes

# If more bytes than this wait in one direction of a request, their sender has to wait.
HIGH_WATER = 65536
LONGEST_HEAD = 1 << 20
BACKLOG = 1024
# File descriptors that the process may need besides one for each connection.
SPARE_DESCRIPTORS = 256


def main(socket, name, connections, max_message, grace):
    """Serves requests until Forebay sends SIGTERM. Returns the exit code of this process.
    `name`: "module:callable", with dots in both parts if needed, or "module:factory()"."""
    allow_descriptors(int(connections) + SPARE_DESCRIPTORS)
    sys.stdout.reconfigure(line_buffering=True)
    sys.argv = [name]
    own = os.path.dirname(os.path.abspath(__file__))    # first in sys.path, unless PYTHONSAFEPATH is set
    sys.path[:] = [os.getcwd()] + [entry for entry in sys.path if entry and entry != own]
    loop = new_loop()
    asyncio.set_event_loop(loop)
    server = Server(loop, int(max_message), float(grace))
    code = loop.run_until_complete(server.serve(name, socket))
    loop.run_until_complete(end_tasks(loop))
    return code


async def end_tasks(loop):
    """Cancels the tasks that the application has left, as asyncio.run does."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=1)
    await loop.shutdown_asyncgens()


def new_loop():
    try:
        import uvloop
        return uvloop.new_event_loop()
    except ImportError:
        return asyncio.new_event_loop()


def allow_descriptors(count):
    """Raises the soft limit on open files, if the hard limit allows it."""
    try:
        import resource
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < count:
            most = count if hard == resource.RLIM_INFINITY else min(count, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(most, soft), hard))
    except (ImportError, OSError, ValueError):
        pass


def find(name):
    """Returns the application as a callable with the three arguments of ASGI 3."""
    module, _, path = name.partition(':')
    is_factory = path.endswith('()')
    found = importlib.import_module(module)
    for part in path[:-2 if is_factory else None].split('.'):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise AttributeError('%s has no %r; module is "MODULE:CALLABLE"' % (found, part)) from None
    if is_factory:
        found = found()
    if not callable(found):
        raise TypeError('%s is %r, which cannot be called' % (name, found))
    if is_asgi2(found):
        raise TypeError('%s is a class, or takes one argument, as in ASGI 2; Forebay runs ASGI 3: '
                        'application(scope, receive, send)' % name)
    return found


def is_asgi2(found):
    """Returns true if the application takes the scope alone, and returns a second callable."""
    import inspect
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return False
    try:
        signature.bind(None, None, None)
    except TypeError:
        return True
    return False


def report(error):
    """Logs an exception, without the frames of this host above those of the application."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    error.__traceback__ = traceback
    try:
        show(error, traceback)
        sys.stderr.flush()
    except Exception:
        log_error('%s, which cannot be shown' % type(error))


class Server:
    """The application, its lifespan, and all connections."""

    def __init__(self, loop, max_message, grace):
        self.loop = loop
        self.max_message = max_message    # largest message of a WebSocket, in bytes
        self.grace = grace                # seconds for the remaining requests after SIGTERM
        self.application = None
        self.connections = set()
        self.running = set()              # requests whose application has not returned
        self.is_stopping = False
        self.handlers = {}                # this host's signal handlers, by number
        self.mask = threading.local()     # the signals that were blocked before a fork
        self.is_child = False             # the application has forked this process
        self.none_runs = None             # event: the last request has ended; set up by stop()
        self.listener = None
        self.state = {}                   # state of the lifespan; each request gets a copy
        self.requests = {}                # parsed heads and scopes, by the bytes of scope line and head
        self.heads = {}                   # parsed heads by their bytes
        self.lines = {}                   # parsed scope lines by their bytes

    async def serve(self, name, socket):
        stop = asyncio.Event()
        for number in signal.SIGTERM, signal.SIGINT:
            self.loop.add_signal_handler(number, stop.set)
            self.handlers[number] = signal.getsignal(number)
        try:
            self.application = find(name)
        except BaseException as error:
            log_error('cannot load the application %s:' % name)
            report(error)    # its last line names the error
            return 1
        lifespan = Lifespan(self.application, self.state)
        if not await lifespan.start():
            return 1
        gc.collect()
        gc.freeze()    # loaded objects stay, so collections can skip them
        os.register_at_fork(before=self.fork, after_in_child=self.leave, after_in_parent=self.forked)
        self.listener = await self.loop.create_unix_server(
            lambda: Connection(self), socket, backlog=BACKLOG)
        await stop.wait()
        await self.stop()
        return 0 if await lifespan.stop() else 1

    async def stop(self):
        """Stops serving. Returns when the last request has ended, or when the grace period is
        over."""
        self.is_stopping = True
        self.none_runs = asyncio.Event()
        self.listener.close()
        for connection in list(self.connections):
            connection.stop()
        if self.running:
            try:
                await asyncio.wait_for(self.none_runs.wait(), self.grace)
            except asyncio.TimeoutError:
                await self.cancel()

    async def cancel(self):
        tasks = [request.task for request in self.running]
        log_error('%d requests were still running and are cancelled' % len(tasks))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=1)

    def ended(self, request):
        """Forgets a request whose application has returned."""
        self.end_child()
        self.running.discard(request)
        if self.none_runs is not None and not self.running:
            self.none_runs.set()

    def end_child(self):
        """Ends this process instead of answering, if it is a child that the application has
        forked."""
        if self.is_child:
            os._exit(0)

    def fork(self):
        """Prepares a fork by the application: blocks the signals of this host until the child has
        other handlers."""
        self.mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, self.handlers)

    def forked(self):
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask.before)

    def leave(self):
        """Closes all sockets, in a child that the application has forked: only the worker writes to
        Forebay. A program that the application executes does not inherit them (PEP 446). SIGTERM
        ends the child. The event loop's handler would report the signal to the worker instead,
        through a socket that both have, and the worker would stop."""
        self.is_child = True
        signal.set_wakeup_fd(-1)
        for number, handler in self.handlers.items():
            if signal.getsignal(number) is handler:
                signal.signal(number, signal.SIG_DFL)
        self.forked()
        sockets = [] if self.listener is None else [one.fileno() for one in self.listener.sockets]
        for connection in self.connections:
            sockets.append(connection.descriptor)
            connection.leave()
        self.connections, self.listener = set(), None
        for descriptor in sockets:
            try:
                os.close(descriptor)
            except OSError:
                pass


class Lifespan:
    """The startup and shutdown of the application (ASGI's lifespan protocol)."""

    def __init__(self, application, state):
        self.application, self.state = application, state
        self.events = asyncio.Queue()
        self.answer = None      # future of the application's answer to the current event
        self.has_asked = False  # the application has asked for an event, so it knows the protocol
        self.task = None

    async def start(self):
        """Returns false, after a message in the log, if the startup failed. An application that
        does not know the protocol counts as started."""
        self.answer = asyncio.get_running_loop().create_future()
        self.task = asyncio.ensure_future(self.run())
        self.events.put_nowait({'type': 'lifespan.startup'})
        await asyncio.wait([self.task, self.answer], return_when=asyncio.FIRST_COMPLETED)
        if self.answer.done():
            return self.succeeded('startup')
        error = None if self.task.cancelled() else self.task.exception()
        if error is None or not self.has_asked:
            return True
        log_error('the application failed in its startup (lifespan):')
        report(error)
        return False

    async def run(self):
        scope = {'type': 'lifespan', 'asgi': {'version': '3.0', 'spec_version': '2.0'},
                 'state': self.state}
        await self.application(scope, self.receive, self.send)

    async def stop(self):
        """Returns false, after a message in the log, if the shutdown failed."""
        if self.task is None or self.task.done():
            return True
        self.answer = asyncio.get_running_loop().create_future()
        self.events.put_nowait({'type': 'lifespan.shutdown'})
        await asyncio.wait([self.task, self.answer], return_when=asyncio.FIRST_COMPLETED)
        if self.answer.done():
            return self.succeeded('shutdown')
        error = None if self.task.cancelled() else self.task.exception()
        if error is None:
            return True
        log_error('the application failed in its shutdown (lifespan):')
        report(error)
        return False

    def succeeded(self, event):
        message = self.answer.result()
        if message['type'] == 'lifespan.%s.complete' % event:
            return True
        log_error('the application refused its %s (lifespan): %s'
                  % (event, message.get('message') or 'it gave no reason'))
        return False

    async def receive(self):
        self.has_asked = True
        return await self.events.get()

    async def send(self, message):
        kinds = ['lifespan.%s.%s' % (event, outcome) for event in ('startup', 'shutdown')
                 for outcome in ('complete', 'failed')]
        if message['type'] not in kinds:
            raise RuntimeError('%r is no message of a lifespan' % message['type'])
        if self.answer.done():
            raise RuntimeError('%r was not expected now' % message['type'])
        self.answer.set_result(message)
