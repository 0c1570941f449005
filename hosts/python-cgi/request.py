# What a request needs, and what it leaves: handed over behind python-cgi.py, which has the imports.


class Control:
    def __init__(self):
        self.inbox, self.output = Inbox(), os.dup(1)
        self.part = b''    # of the body, that came with the head

    def receive(self):
        """The next request: environment block, length of the body. None at the end."""
        request = self.inbox.receive()
        if request is None:
            return None
        block, length, self.part = request
        return block, length

    def receive_body(self, length):
        """Puts the body on descriptor 0: a small one in a pipe, a big one in a nameless file. The
        reason, if it cannot be stored."""
        pieces = self.pieces(length)
        if length <= LARGEST_IN_PIPE:
            body = b''.join(pieces)
            reader, writer = os.pipe()
            os.set_blocking(writer, False)    # some pipes hold one page only
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
                os._exit(0)    # Forebay has gone

    def reply(self, kind, is_last, status):
        end_marker = self.inbox.end_marker(kind, is_last, status)
        try:
            write(self.output, end_marker)
        except BlockingIOError:    # a script has made it one that does not wait
            os.set_blocking(self.output, True)
            write(self.output, end_marker)

    def close(self):
        self.inbox.close()
        os.close(self.output)


def store(pieces):
    """Puts a body in a file on descriptor 0, to its last byte even if there is no room for it."""
    file, fault = None, None
    for piece in pieces:
        if fault is None:
            try:
                if file is None:
                    file = nameless_file()
                write_all(file, piece)
            except OSError as error:
                fault = str(error)
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
    def __init__(self):
        null = os.open('/dev/null', os.O_RDONLY)
        os.dup2(null, 0)
        self.null, self.output, self.log = null, os.dup(1), os.dup(2)
        self.spare = (self.null, self.output, self.log)
        self.own = [self.place(number) for number in (0, 1, 2)]

    def restore(self):
        """Puts descriptors 0, 1 and 2 back. False if the script had something of its own at 1 or 2,
        which it could still close."""
        sound = True
        for number in (0, 1, 2):
            place = self.place(number)
            if place != self.own[number]:
                sound = sound and (number == 0 or place is None)
                os.dup2(self.spare[number], number)
        return sound

    def place(self, number):
        try:
            status = os.fstat(number)
            return status.st_ino, status.st_dev
        except OSError:
            return None

    def close(self):
        for descriptor in self.spare:
            os.close(descriptor)


class Environment:
    def __init__(self):
        self.environ, self.data = os.environ, os.environ._data
        self.base = dict(self.data)

    def value(self, name):
        return self.data.get(name, b'')

    def set(self, block):
        """Makes os.environ and the environment of children what the request says."""
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
    """sys.stdin, sys.stdout and sys.stderr, as the interpreter makes them when it starts."""

    def __init__(self):
        self.layers = [
            dict(encoding=stream.encoding, errors=stream.errors)
            for stream in (sys.stdin, sys.stdout, sys.stderr)
        ]
        self.has_error_lines = sys.stderr.line_buffering    # not before Python 3.9
        self.input = self.output = self.error = None
        self.had_body = True
        self.unbuffered = None
        self.restore()

    def renew(self, script, has_body):
        """Fit for a request: nothing that was read ahead, no layers of another script's."""
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
        """What the end of a process does: writes what is left. Closed ones are made again."""
        sys.stdout = None
        flush(self.output)
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
        return stream


class Interpreter:
    """What a script changes in the process, and a new process would have fresh."""

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

    def restore(self, installed):
        for number, handler in self.signals:
            if _signal.getsignal(number) is not handler and handler is not None:
                _signal.signal(number, handler)
        _signal.alarm(0)
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
        if module.pthread_sigmask(module.SIG_BLOCK, ()):
            module.pthread_sigmask(module.SIG_SETMASK, ())

    def restore_random(self, module):
        """Draws a new seed if the script has given one, so that the next cannot be foretold."""
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
        """Takes out the handlers that the script has set up; they hold its streams and files."""
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

    RESTORED = [
        ('signal', restore_signal), ('random', restore_random),
        ('warnings', restore_warnings), ('logging', restore_logging), ('cgi', restore_cgi),
        ('threading', restore_threading), ('_socket', restore_socket),
        ('asyncio.events', restore_asyncio),
    ]
