# The host for WSGI in mode `prove`. Forebay appends this file to wsgi.py. Until Forebay has proved the
# application, each request runs in a fork of the worker, which compares what the request has left.
# python-cgi/proving.py describes FOREBAY_PROOF.

ENDS_TOO = 3    # exit code of a fork after which the worker ends
PROOF = b'FOREBAY_PROOF\0'


class ProvingWorker(Worker):
    def __init__(self, application, inbox, output, descriptors, name):
        Worker.__init__(self, application, inbox, output)
        self.descriptors, self.name, self.receive = descriptors, name, inbox.receive
        self.library = os.path.join(os.path.dirname(os.__file__), '')
        self.token = version_of_modules(self.library)
        self.checks = Checks(self.library)
        Walk.compares_environment = True
        self.baseline = None

    def answer(self):
        request = self.receive()
        if request is None:
            return False
        self.inbox.receive = lambda: request
        block = request[0]
        word = ''
        if block.startswith(PROOF):
            word, _, block = block[len(PROOF):].partition(b'\0')
            word = word.decode()
            request = (block,) + request[1:]
        fields = block.split(b'\0')
        environment = dict(zip(fields[0:-1:2], fields[1::2]))
        if word == 'keep ' + self.token:
            goes_on = Worker.answer(self)
            self.checks.count(self.name, self.token, environment)
            return goes_on
        return self.answer_in_fork(environment, word != 'refused ' + self.token)

    def answer_in_fork(self, environment, compares):
        if compares and self.baseline is None:
            self.baseline = Walk(self.library)
        report, parent = os.memfd_create('proof'), os.getpid()
        self.descriptors.inbox = None    # this fork keeps them
        child = os.fork()
        self.descriptors.inbox = self.inbox
        if child == 0:
            code = 1
            try:
                end_with(parent)
                known = frozenset(sys.modules)
                self.is_own = fork_flag()
                if compares:
                    self.baseline.refresh()
                goes_on = Worker.answer(self)
                if compares:
                    self.compare(environment, known, report)
                code = 0 if goes_on else ENDS_TOO
                sys.stdout.flush()
                sys.stderr.flush()
            except BaseException:
                import traceback
                log_error('%s: %s' % (self.name, traceback.format_exc()))
            finally:
                # Without destructors, which could close connections that the worker has opened at
                # its start.
                os._exit(code)
        _, how = os.waitpid(child, 0)
        if how not in (0, ENDS_TOO << 8):
            os._exit(1)    # as the fork did, in the middle of the reply
        os.lseek(report, 0, os.SEEK_SET)
        text = b''.join(iter(lambda: os.read(report, CHUNK), b''))
        os.close(report)
        if text:
            lines = self.load_too(text.decode('ascii', 'replace').split('\n'))
            tell_proof(self.name, self.token, 'forked', lines)
        return how == 0

    def load_too(self, lines):
        """Loads the modules that a request has loaded in its fork, so that the next one finds them,
        and only what a request itself has left counts. Returns the other lines of the report, without
        what the modules have set."""
        count = len(sys.modules)
        for line in lines:
            if line.startswith('loaded '):
                try:
                    __import__(line[len('loaded '):])
                except BaseException:
                    pass    # the fork could load it, perhaps with what the request had set
        lines = [line for line in lines if not line.startswith('loaded ')]
        if len(sys.modules) == count:
            return lines
        self.baseline = None
        return [line for line in lines if not line.startswith('trace ')
                or not line.endswith(' -') and 'changes%20more' not in line]

    def compare(self, environment, known, report):
        begun = time.time()
        try:
            gc.collect()
            faults = faults_of_request()
            walk = Walk(self.library, self.baseline)
            lines = report_of(walk, inputs_of(environment), faults, begun, self.name)
            lines = ['loaded ' + name for name in sys.modules if name not in known
                     and name.replace('.', '_').isidentifier() and name.isascii()] + lines
            text = memoryview('\n'.join(lines).encode())
            while text:
                text = text[os.write(report, text):]
        except Exception as error:
            log_error('%s: cannot be compared: %s' % (self.name, error))


def version_of_modules(library):
    """Returns a text that changes with the files of the application."""
    files = []
    for module in list(sys.modules.values()):
        file = getattr(module, '__file__', None)
        if isinstance(file, str) and (not file.startswith(library) or '-packages' in file):
            try:
                status = os.stat(file)
                files.append('%s %d %d' % (file, status.st_size, status.st_mtime_ns))
            except OSError:
                pass
    return hashlib.blake2b('\n'.join(sorted(files)).encode(errors='surrogateescape'),
                           digest_size=8).hexdigest()
