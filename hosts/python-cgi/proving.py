# The host for CGI scripts in mode `prove`. Forebay appends this file to python-cgi.py.


class ProvingHost(Host):
    """The host in mode `prove`. A script that is not proved runs in a fork, which compares what the
    request has left. Forebay decides which scripts are proved, and says so in the variable
    FOREBAY_PROOF: "keep" or "refused" and the version of the script's file."""

    def __init__(self, *arguments):
        Host.__init__(self, *arguments)
        self.baseline = None
        self.comparison = None    # of this request: the file for the report
        self.unchecked = None     # the kept script that has just run
        self.checks = Checks(self.modules.library)

    def answer(self, run, block, length):
        code = Host.answer(self, run, block, length)
        script, self.unchecked = self.unchecked, None
        if code is None and script is not None:
            self.checks.count(script.file, token_of(script), self.environment.data)
        return code

    def prove(self, script, has_body):
        token = token_of(script)
        word = os.fsdecode(self.environment.value(b'FOREBAY_PROOF'))
        if word == 'keep ' + token:
            self.baseline, self.unchecked = None, script
            return self.run(script, has_body)
        if word == 'refused ' + token:
            return self.fork(script, has_body)
        if self.modules.current.modules:
            self.modules.show(Local())
        if self.baseline is None:
            self.baseline = Walk(self.modules.library)
        self.comparison = nameless_file()
        try:
            known = len(sys.modules)
            answer = self.fork(script, has_body)
            if os.getpid() == self.pid:
                os.lseek(self.comparison, 0, os.SEEK_SET)
                text = b''.join(iter(lambda: os.read(self.comparison, CHUNK), b''))
                if text:
                    tell_proof(script.file, token, 'forked', text.decode('ascii', 'replace').split('\n'))
                if len(sys.modules) != known:
                    self.baseline = None    # it has loaded modules for the next fork
            return answer
        finally:
            os.close(self.comparison)
            self.comparison = None

    def execute(self, script):
        compares = self.comparison is not None and os.getpid() != self.pid
        if compares:
            self.baseline.refresh()
            child = os.getpid()
        outcome = Host.execute(self, script)
        if compares and os.getpid() == child:
            begun = time.time()
            try:
                faults = faults_of_request()
                walk = Walk(self.modules.library, self.baseline)
                lines = report_of(
                    walk, inputs_of(self.environment.data), faults, begun, script.file)
                write_all(self.comparison, '\n'.join(lines).encode())
            except Exception as error:
                log_error('%s: cannot be compared: %s' % (script.file, error))
        return outcome


def token_of(script):
    return '.'.join(map(str, script.made_from))
