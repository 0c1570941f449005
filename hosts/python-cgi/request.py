# The state of a request and its cleanup. Forebay appends this file to python-cgi.py, which has the
# imports.


class Control:
    def __init__(self):
        self.inbox = Inbox()
        self.part = b''    # the part of the body that came with the head

    def receive(self):
        """Returns the next request: environment block, length of the body. Returns None at the
        end."""
        request = self.inbox.receive()
        if request is None:
            return None
        block, length, self.part = request
        return block, length

    def receive_body(self, length):
        """Puts the body on descriptor 0: a small body in a pipe, a large one in an unnamed file.
        Returns the error if the body cannot be stored."""
        pieces = self.pieces(length)
        if length <= LARGEST_IN_PIPE:
            body = b''.join(pieces)
            reader, writer = os.pipe()
            os.set_blocking(writer, False)    # some pipes hold only one page
            try:
                fits = os.write(writer, body) == length
            except BlockingIOError:
                fits = False
            os.close(writer)
            if fits:
                os.dup2(reader, 0)
            os.close(reader)
            if fits:
                return None
            pieces = [body]
        return store(pieces)

    def pieces(self, length):
        piece, self.part = self.part, b''
        while True:
            length -= len(piece)
            yield piece
            if length <= 0:
                return
            piece = self.inbox.read(min(length, CHUNK))
            if not piece:
                os._exit(0)    # Forebay has ended

    def reply(self, kind, is_last, status):
        end_marker = self.inbox.end_marker(kind, is_last, status)
        try:
            write(1, end_marker)
        except BlockingIOError:    # a script has made the socket non-blocking
            os.set_blocking(1, True)
            write(1, end_marker)


def store(pieces):
    """Puts a body in a file on descriptor 0. Reads it to the last byte even if it cannot be stored.
    Returns the error, if any."""
    file, fault = None, None
    for piece in pieces:
        if fault is None:
            try:
                if file is None:
                    file = nameless_file()
                write_all(file, piece)
            except OSError as error:
                fault = error
    if fault is None:
        os.lseek(file, 0, os.SEEK_SET)
        os.dup2(file, 0)
    if file is not None:
        os.close(file)
    return fault


def write_all(file, data):
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest):]


def nameless_file():
    directory = os.environ.get('TMPDIR', '/tmp')
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError:
        import tempfile
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())


class Descriptors:
    def __init__(self, inbox):
        self.inbox = inbox
        null = os.open('/dev/null', os.O_RDONLY)
        os.dup2(null, 0)
        self.null, self.output, self.log = null, os.dup(1), os.dup(2)
        self.spare = (self.null, self.output, self.log)
        self.own = [self.place(number) for number in (0, 1, 2)]
        # The interpreter keeps this function until it ends, and with it the object of the method.
        # So this is no method of Host.
        os.register_at_fork(after_in_child=self.leave)

    def restore(self):
        """Restores descriptors 0, 1 and 2. Returns false if the script had opened a file of its own
        as 1 or 2, because it could still close that descriptor."""
        try:
            if [os.fstat(0)[1:3], os.fstat(1)[1:3], os.fstat(2)[1:3]] == self.own:
                return True
        except OSError:
            pass    # closed
        sound = True
        for number in (0, 1, 2):
            place = self.place(number)
            if place != self.own[number]:
                sound = sound and (number == 0 or place is None)
                os.dup2(self.spare[number], number)
                if self.place(number) != self.own[number]:
                    raise OSError(errno.EBADF, 'a script has closed descriptors of its worker')
        return sound

    def place(self, number):
        try:
            return os.fstat(number)[1:3]    # inode, device
        except OSError:
            return None

    def has_room(self):
        """Returns true if enough descriptors are free for later requests."""
        try:
            lowest = dup(0)
        except OSError:
            return False
        close(lowest)
        if lowest < SPARE_DESCRIPTORS // 2:
            return True
        limit = sysconf('SC_OPEN_MAX')
        return limit < 0 or lowest + min(limit // 4, SPARE_DESCRIPTORS) <= limit

    def leave(self):
        """In a child process, closes the worker's own descriptors. The child keeps the output that
        the script has."""
        if self.inbox is not None:
            self.inbox.close()
            self.inbox = None    # a grandchild has other files at these numbers
            for descriptor in self.spare:
                close(descriptor)


class Variables(dict):
    """The variables of os.environ, in a class that modules.py can change for a time."""


class Environment:
    def __init__(self):
        self.environ, self.data = os.environ, Variables(os.environ._data)
        self.environ._data = os.environb._data = sys.modules['posix'].environ = self.data
        self.base = dict(self.data)

    def value(self, name):
        return self.data.get(name, b'')

    def set(self, block):
        """Sets os.environ and the environment for child processes to that of the request."""
        os.environ = self.environ
        self.environ._data = self.data
        fields = block.split(b'\0')
        new = dict(self.base)
        new.update(zip(fields[0:-1:2], fields[1::2]))
        have = self.data
        if new == have:
            return
        zone = have.get(b'TZ')
        for name in have.keys() - new.keys():
            os.unsetenv(name)
        for name, value in new.items():
            if have.get(name) != value:
                os.putenv(name, value)
        have.clear()
        have.update(new)
        if zone != new.get(b'TZ'):
            import time
            time.tzset()


class Streams:
    """sys.stdin, sys.stdout and sys.stderr, as the interpreter makes them at its start."""

    def __init__(self, handles):
        self.handles = handles
        self.own_output = []
        self.layers = [
            dict(encoding=stream.encoding, errors=stream.errors)
            for stream in (sys.stdin, sys.stdout, sys.stderr)
        ]
        self.has_error_lines = sys.stderr.line_buffering    # false before Python 3.9
        self.input = self.output = self.error = None
        self.had_body = True
        self.unbuffered = None
        self.restore()

    def renew(self, script, has_body):
        """Prepares the streams for a request: no text that was read ahead, no layers of another
        script."""
        if has_body or self.had_body or not self.is_as_made(self.input, 0):
            self.input = self.made(0, 'r')
            self.had_body = bool(has_body)
        if not self.is_whole(self.output) or self.unbuffered != script.is_unbuffered:
            self.output = self.made(1, 'w', script.is_unbuffered)
            self.unbuffered = script.is_unbuffered
        self.output.reconfigure(
            newline='\n', line_buffering=False, write_through=self.unbuffered, **self.layers[1])
        self.set()

    def restore(self):
        """Writes the remaining text, as the end of a process does. Opens closed streams again."""
        sys.stdout = None
        flush(self.output)
        if not self.is_whole(self.output):
            self.note_output()
        if not self.is_as_made(self.error, 2):
            self.error = self.made(2, 'w')
        self.set()

    def set(self):
        sys.stdin = sys.__stdin__ = self.input
        sys.stdout = sys.__stdout__ = self.output
        sys.stderr = sys.__stderr__ = self.error

    def is_whole(self, stream):
        try:
            return stream is not None and not stream.closed
        except ValueError:    # detached
            return False

    def is_as_made(self, stream, number):
        layers = self.layers[number]
        return self.is_whole(stream) and stream.encoding == layers['encoding'] \
            and stream.errors == layers['errors'] \
            and stream.line_buffering == (number == 2 and self.has_error_lines)

    def made(self, number, mode, unbuffered=False):
        buffer = open(number, mode + 'b', buffering=0 if unbuffered else -1, closefd=False)
        raw = buffer if unbuffered else buffer.raw
        raw.name = ('<stdin>', '<stdout>', '<stderr>')[number]
        stream = io.TextIOWrapper(
            buffer, newline=None if number == 0 else '\n',
            line_buffering=number == 2 and self.has_error_lines,
            write_through=unbuffered, **self.layers[number])
        stream.mode = mode
        if number == 1:
            self.note_output()
            self.own_output = [reference_to(stream), reference_to(buffer)]
        return stream

    def note_output(self):
        """Lets Handles watch the previous standard output, because a script may have kept it."""
        layers = [reference() for reference in self.own_output]
        self.handles.note([layer for layer in layers if layer is not None])


class Interpreter:
    """The process state that a script may change, and that is fresh in a new process."""

    def __init__(self):
        self.signals = [
            (number, _signal.getsignal(number)) for number in range(1, 32) if number not in (9, 19)
        ]
        self.mask = os.umask(0o22)
        os.umask(self.mask)
        self.builtins = dict(vars(builtins))
        self.limit = sys.getrecursionlimit()
        self.writes_no_bytecode = sys.dont_write_bytecode
        self.locale = _locale.setlocale(_locale.LC_ALL)
        self.filters = list(_warnings.filters)
        self.seeded = False
        self.known = {}
        self.is_spoiled = False    # a script has made a change that no process can undo
        self.limits = limits()
        note_calls(os, 'chroot', self.note_chroot)

    def note_chroot(self):
        self.is_spoiled = True    # the files of other scripts are out of reach

    def restore(self, installed):
        _signal.alarm(0)
        if 'signal' in installed:
            self.drop_blocked_signals()
        for number, handler in self.signals:
            if _signal.getsignal(number) is not handler and handler is not None:
                _signal.signal(number, handler)
        os.umask(self.mask)
        self.restore_sys()
        if vars(builtins) != self.builtins:
            vars(builtins).update(self.builtins)
        gc.enable()
        if _locale.setlocale(_locale.LC_ALL) != self.locale:
            _locale.setlocale(_locale.LC_ALL, self.locale)
        for name, restore in self.RESTORED:
            module = sys.modules.get(name) if name in installed else None
            if module is not None:
                restore(self, module)

    def drop_blocked_signals(self):
        """Unblocks all signals. Those that wait are dropped, as at the end of a process, because
        they could end this process before the reply is complete."""
        blocked = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
        if not blocked:
            return
        for number in blocked:
            _signal.signal(number, _signal.SIG_IGN)    # the kernel then drops what waits
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        for number in blocked:
            _signal.signal(number, _signal.SIG_DFL)

    def restore_sys(self):
        sys.excepthook, sys.displayhook = sys.__excepthook__, sys.__displayhook__
        sys.unraisablehook, sys.breakpointhook = sys.__unraisablehook__, sys.__breakpointhook__
        sys.dont_write_bytecode = self.writes_no_bytecode
        if sys.getrecursionlimit() != self.limit:
            sys.setrecursionlimit(self.limit)
        sys.settrace(None)
        sys.setprofile(None)
        if hasattr(sys, 'tracebacklimit'):
            del sys.tracebacklimit

    def restore_signal(self, module):
        for timer in (module.ITIMER_VIRTUAL, module.ITIMER_PROF):
            module.setitimer(timer, 0)
        module.set_wakeup_fd(-1)

    def restore_resource(self, module):
        if limits() != self.limits:
            self.is_spoiled = True    # a process without privileges cannot raise them again

    def restore_random(self, module):
        """Draws a new seed if the script has set one, so that later numbers cannot be predicted."""
        if self.known.get('random') is not module:
            original = module.seed

            def seed(*args, **kwargs):
                self.seeded = True
                return original(*args, **kwargs)

            module.seed = seed
            self.known.update(random=module, seed=original)
            self.seeded = True
        if self.seeded:
            self.known['seed']()
            self.seeded = False

    def restore_warnings(self, module):
        if module.filters != self.filters:
            module.resetwarnings()
            module.filters[:] = self.filters
        module.showwarning = getattr(module, '_showwarning_orig', module.showwarning)

    def restore_logging(self, module):
        """Removes the log handlers that the script has set up, because they hold its streams and
        files."""
        if len(module._handlerList) > 1 or module.root.handlers:
            for logger in [module.root] + list(module.root.manager.loggerDict.values()):
                for handler in list(getattr(logger, 'handlers', ())):
                    if not isinstance(handler, module.NullHandler):
                        logger.removeHandler(handler)
                        try:
                            handler.close()
                        except Exception as error:
                            log_error('cannot close a log handler: %s' % error)
        if module.root.level != module.WARNING:
            module.root.setLevel(module.WARNING)
        if module.root.manager.disable:
            module.disable(0)

    def restore_cgi(self, module):
        module.maxlen, module.logfile, module.logfp = 0, '', None
        module.log = module.initlog

    def restore_threading(self, module):
        module.excepthook = getattr(module, '__excepthook__', None) or _thread._excepthook

    def restore_socket(self, module):
        if module.getdefaulttimeout() is not None:
            module.setdefaulttimeout(None)

    def restore_asyncio(self, module):
        if getattr(module, '_event_loop_policy', None) is not None:
            module._event_loop_policy = None

    def restore_faulthandler(self, module):
        module.cancel_dump_traceback_later()    # not a Python thread; would write to the client

    RESTORED = [
        ('signal', restore_signal), ('resource', restore_resource), ('random', restore_random),
        ('warnings', restore_warnings), ('logging', restore_logging), ('cgi', restore_cgi),
        ('threading', restore_threading), ('_socket', restore_socket),
        ('asyncio.events', restore_asyncio), ('faulthandler', restore_faulthandler),
    ]


def limits():
    """Returns the resource limits of this process."""
    descriptor = os.open('/proc/self/limits', os.O_RDONLY)
    try:
        return os.read(descriptor, CHUNK)
    finally:
        close(descriptor)


class Threads:
    """The threads of scripts, counted from the call that starts one. The interpreter counts a
    thread only after it first runs, which may be in a later request."""

    # Modules with pools: their waiting threads, and the flag that the end of a process sets.
    POOLS = {
        'concurrent.futures.thread': ('_threads_queues', '_shutdown'),
        'concurrent.futures.process': ('_threads_wakeups', '_global_shutdown'),
    }

    def __init__(self):
        self.running = set()
        for name in ('start_new_thread', 'start_new', 'start_joinable_thread'):
            if hasattr(_thread, name):
                setattr(_thread, name, self.counted(getattr(_thread, name)))

    def counted(self, start):
        def start_counted(target, *arguments, **keywords):
            token = object()

            def run(*args, **kwargs):
                try:
                    target(*args, **kwargs)
                finally:
                    self.running.discard(token)

            self.running.add(token)
            try:
                return start(run, *arguments, **keywords)
            except BaseException:
                self.running.discard(token)
                raise

        return start_counted

    def are_left(self):
        return bool(self.running) or count_threads() > 0

    def wait(self):
        """Waits for the script's threads, as the end of a process does. Returns true if daemon
        threads remain."""
        if not self.running and not count_threads():
            return False
        # The interpreter ends pools in this order: the module that was loaded last is the first.
        for name in [name for name in reversed(list(sys.modules)) if name in self.POOLS]:
            pool, (threads, flag) = sys.modules[name], self.POOLS[name]
            if getattr(pool, threads, None):
                pool._python_exit()
                setattr(pool, flag, False)
        threading = sys.modules.get('threading')
        for thread in threading.enumerate() if threading is not None else ():
            if not thread.daemon and thread is not threading.current_thread():
                thread.join()
        return self.are_left()
