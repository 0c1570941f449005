# Forebay's host for CGI scripts written in Python: a worker that compiles each script once and runs
# it for one request after another. It needs only the standard library of Python 3.8 to 3.14. It is
# no web server: Forebay (crates/forebay-workers) starts it, sends it requests and reads the output
# of the script.
#
# Descriptors at the start: 0 the control socket, 1 the output socket, 2 a pipe to the log, 3 the
# prefetch queue. The host at once moves all of them except the log to other numbers. A script then
# finds the descriptors that CGI requires: the body on 0, the client on 1, the log on 2. These are
# real descriptors, so that child processes write to the client, too. PROTOCOL.md describes the
# protocol on the sockets.
#
# python-inbox.py receives requests. python-cgi/request.py and handles.py prepare the process for a
# request and restore it afterwards. modules.py holds the modules that scripts see. Forebay joins
# all of these files and sends them as one text.
import sys

STARTUP = frozenset(sys.modules)    # loaded by the interpreter before a script could replace it

import _contextvars
import _locale
import _signal
import _thread
import _warnings
import atexit
import builtins
import errno
import gc
import io
import os
import select
import struct
from _frozen_importlib_external import SourceFileLoader, _LoaderBasics
from _thread import _count as count_threads
from _weakref import ref as reference_to
from os import (    # originals, whatever scripts do to os
    _exit as exit_now, close, dup, dup2, fstat, getgroups, getpid, getresgid, getresuid, read, sysconf,
    waitpid, write,
)

MODULES = sys.modules
HEAD = 28
CHUNK = LARGEST_IN_PIPE = 65536
LAY_THERE = 4
PATHS_KEPT = 32
PASSES = 6    # passes over the processes that a script has left
SPARE_DESCRIPTORS = 64    # with fewer free descriptors, a worker is replaced
HEAP_TYPE = 1 << 9    # a flag of types that are not built in
# Errors for a lack of resources. Another process, or a later request, may succeed.
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
UNBUFFERED = sys.stdout.write_through    # PYTHONUNBUFFERED
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def serve(mode, parent, cgi, cgitb):
    """Serves requests until Forebay closes the control socket. Returns the exit code of this
    process. `mode`: fresh or fork. `cgi`, `cgitb`: sources of these modules, for interpreters that
    lack them."""
    adopts_orphans = end_with(int(parent), adopts_orphans=True)
    host = (ProvingHost if mode == 'prove' else Host)({'cgi': cgi, 'cgitb': cgitb}, adopts_orphans)
    if mode == 'prove':
        return host.serve(host.prove)
    return host.serve(host.fork if mode == 'fork' else host.run)    # fork: one process per request


def end_with(parent, adopts_orphans=False):
    """Asks the kernel to end this process when Forebay (or the worker that forked it) ends. A
    worker also becomes the parent of all descendants whose own parent ends, so that it can see
    them. Returns false if the interpreter cannot ask the kernel for that."""
    done = False
    try:
        import ctypes
        prctl = ctypes.PyDLL(None).prctl
        prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0)
        done = adopts_orphans and prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    except (ImportError, AttributeError, OSError):
        pass    # without ctypes, the interpreter ends when its control socket closes
    if os.getppid() != parent:
        os._exit(0)
    return done


class Host:
    def __init__(self, replacements, adopts_orphans):
        self.adopts_orphans = adopts_orphans
        self.faults = faults_of_children()
        self.pid = os.getpid()
        self.identity = identity()
        self.serving = False
        self.main = None
        self.between = type(sys)('__main__')    # while no script runs
        self.callbacks = []
        self.scripts = {}
        self.control = Control()
        self.descriptors = Descriptors(self.control.inbox)
        self.environment = Environment()
        self.interpreter = Interpreter()
        self.threads = Threads()
        self.library = CLibrary()
        self.handles = Handles()
        self.streams = Streams(self.handles)
        sys.meta_path.append(Replacements(replacements))
        self.modules = Modules()
        self.loading = Loading(self.environment, self.streams, self.modules.library)
        self.take_exit_functions()

    def serve(self, run):
        self.control.inbox.ready()
        gc.collect()
        self.handles.freeze()
        while True:
            request = self.control.receive()
            if request is None:
                return 0
            try:
                code = self.answer(run, *request)
            except BaseException as error:
                code = self.break_off(error)
            if code is not None:
                return code

    def answer(self, run, block, length):
        """Answers one request. Returns None, or the exit code if this process has to end."""
        self.environment.set(block)
        fault = self.control.receive_body(length) if length else None
        if fault is not None:
            log_error('cannot store the request body: %s' % fault)
            status = status_of(fault, 500)
            ends = status == 503
        else:
            script = self.script_for(os.fsdecode(self.environment.value(b'SCRIPT_FILENAME')))
            if isinstance(script, int):
                status, ends = script, script == 503
            else:
                if script.needs_visitor:
                    run = self.fork
                status, ends = run(script, length)
                if os.getpid() != self.pid:
                    return ends    # in the fork: its exit code
        return 0 if self.finish(status, ends) else None

    def break_off(self, error):
        """Ends this process after a step of the host has failed, because a script has broken
        something that the host needs. Only built-in functions are reliable here."""
        if getpid() != self.pid:
            exit_now(1)
        try:
            report(error, error.__traceback__)
        finally:
            try:
                # An end marker on another file would join the next reply to this one.
                if place_of(fstat(1)) == self.descriptors.own[1]:
                    self.control.reply(b'S', True, status_of(error, 500))
            finally:
                exit_now(1)

    def is_whole(self):
        """Returns true if everything that an import needs still exists."""
        return sys.modules is MODULES and STARTUP <= MODULES.keys()

    def finish(self, status, ends):
        """Sends the end marker to Forebay. Returns true if this process has to end."""
        ends = not self.descriptors.restore() or ends or not self.is_whole()
        ends = has_background_child() or ends or self.threads.are_left()
        # A child may have left a child of its own that this process cannot see.
        ends = ends or not self.adopts_orphans and faults_of_children() != self.faults
        ends = ends or not self.descriptors.has_room()
        # Changing the identity back would not be enough: the kernel then has already dropped
        # PR_SET_PDEATHSIG.
        ends = ends or identity() != self.identity or self.interpreter.is_spoiled
        self.control.reply(b'S' if status else b'E', ends, status)
        return ends

    # ---- mode fresh ----

    def run(self, script, has_body):
        """Runs the script in this process. Returns two values: its HTTP status, 0 if it ended by
        itself; and true if it left something that stays until this process ends."""
        self.modules.enter(script)
        self.streams.renew(script, has_body)
        self.loading.begin()
        code, failed = self.execute(script)
        ends = self.threads.wait()
        self.run_exit_functions()
        flush(sys.stdout, sys.stderr)
        if sys.stdout is not self.streams.output:
            flush(self.streams.output)
        if os.getpid() != self.pid:
            self.library.flush()
            os._exit(code)    # a child that the script has forked
        try:
            self.loading.active = False
            if self.loading.needs is not None:
                script.needs_visitor = True
                log_error(
                    '%s: while a module is loaded, %s, so the module cannot stay '
                    'for other visitors: each request loads all modules, as with mode = "fork"'
                    % (script.file, self.loading.needs))
            self.modules.leave(script, self.loading.culprits)
            self.streams.set()
            self.clear()
            self.interpreter.restore(self.modules.known)
        except BaseException as error:
            ends = True
            report(error, error.__traceback__)
        self.streams.restore()
        ends = not self.handles.flush() or ends
        ends = not self.library.flush() or ends
        return 500 if failed else 0, ends

    def execute(self, script):
        """Runs the code. Returns its exit code, and true if an exception ended it."""
        main = self.main = type(sys)('__main__')
        main.__dict__.update(script.names)
        sys.modules['__main__'] = main
        sys.argv = [script.file]
        self.serving = True
        try:
            os.chdir(script.dir)
            _contextvars.Context().run(exec, script.code, main.__dict__)
            return 0, False
        except SystemExit as exit:
            return exit_code(exit), False
        except BaseException as error:
            return report(error, error.__traceback__.tb_next)
        finally:
            self.serving = False

    def clear(self):
        """Releases the objects of the script, as the end of a process does. This closes its
        files."""
        # Collects garbage before anything is dropped, as the interpreter does. So the text of a
        # file in a reference cycle is written before the file's descriptor is closed.
        gc.collect(0)
        names, self.main = self.main.__dict__, None
        sys.modules['__main__'] = self.between
        for name in list(names):
            if isinstance(name, str) and name[:1] == '_' and name[1:2] != '_':
                names[name] = None
        for name in list(names):
            if name != '__builtins__':
                names[name] = None
        self.handles.collect(self.modules.grew)

    def take_exit_functions(self):
        """Makes the functions that a script registers with atexit run at the end of the script.
        Functions that a module registers on import still run at the end of this process."""
        original, forget = atexit.register, atexit.unregister

        def register(func, *args, **kwargs):
            if not self.serving or self.is_of_module(func, sys._getframe(1)):
                return original(func, *args, **kwargs)
            self.callbacks.append((func, args, kwargs))
            return func

        def unregister(func):
            self.callbacks[:] = [entry for entry in self.callbacks if entry[0] != func]
            forget(func)

        atexit.register, atexit.unregister = register, unregister
        self.original_exit_functions = original, forget

    def is_of_module(self, func, frame):
        # weakref registers its function once in a process, when the function is first needed.
        if getattr(func, '__module__', None) == 'weakref':
            return True
        while frame is not None and frame.f_globals is not self.main.__dict__:
            if frame.f_code.co_name == '<module>':
                return True
            frame = frame.f_back
        return False

    def run_exit_functions(self):
        self.serving = True
        callbacks, self.callbacks = self.callbacks, []
        for func, args, kwargs in reversed(callbacks):
            try:
                func(*args, **kwargs)
            except SystemExit:
                pass
            except BaseException as error:
                report(error, error.__traceback__.tb_next)
        self.callbacks = []    # drops functions registered meanwhile, as the end of a process does
        self.serving = False

    # ---- mode fork ----

    def fork(self, script, has_body):
        """Runs the script in a fork, which ends as any Python process does. Also returns in the
        fork, with another process id. There, the second value is the exit code."""
        if self.modules.current.modules:    # what a script in this process has loaded
            self.modules.show(Local())
        self.modules.hide_shadowed(script)
        reader, writer = os.pipe()
        for end in reader, writer:
            os.set_blocking(end, False)    # text that does not fit is not worth a wait
        self.handles.freeze()
        child = os.fork()
        if child == 0:
            os.close(reader)
            return 0, self.run_fork(script, has_body, writer)
        os.close(writer)
        _, how = os.waitpid(child, 0)
        word = b''
        try:
            word = os.read(reader, CHUNK)
        except BlockingIOError:
            pass    # a process that the script started has a copy of `writer`
        os.close(reader)
        failed, _, names = word.partition(b'\n')
        self.modules.preload(names.decode().split())
        if os.WIFSIGNALED(how):
            log_error('%s: ended by signal %d' % (script.file, os.WTERMSIG(how)))
            return 502, False
        return 500 if failed == b'failed' else 0, False

    def run_fork(self, script, has_body, writer):
        end_with(self.pid)
        atexit.register, atexit.unregister = self.original_exit_functions
        sys.path[:] = script.path + self.modules.path
        self.streams.renew(script, has_body)
        before = frozenset(sys.modules)
        numpy = sys.modules.get('numpy.random')
        if numpy is not None:
            numpy.seed()    # the module random does this by itself
        child = os.getpid()
        code, failed = self.execute(script)
        if os.getpid() == child:
            names = self.modules.of_standard_library(set(sys.modules) - before)
            word = b'failed\n' if failed else b'\n'
            os.write(writer, word + ' '.join(names).encode()[:4000])
        os.close(writer)
        return code

    # ---- scripts ----

    def script_for(self, file):
        """Returns the compiled script of `file`, compiled again if the file has changed; or an HTTP
        status."""
        script = self.scripts.get(file)
        try:
            now = os.stat(file)
            if script is not None and script.is_from(now):
                return script
            self.scripts.pop(file, None)
            if now.st_mode & 0o170000 != 0o100000:
                return refuse(file, 'not a regular file', 403)
            if not os.access(file, os.X_OK):
                return refuse(file, 'not executable (chmod +x)', 403)
            with open(file, 'rb') as text:
                source = text.read()
            # Forebay checks the first line, but the file may have changed since then. A #! line
            # without a program says nothing about the language.
            line = source.split(b'\n', 1)[0]
            if line.startswith(b'#!') and line[2:].strip() and b'python' not in line.lower():
                return refuse(file, 'its #! line names another language than Python', 500)
        except OSError as error:
            missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
            return refuse(file, error.strerror, status_of(error, 404 if missing else 403))
        try:
            script = self.scripts[file] = Script(file, source, now)
            return script
        except Exception as error:
            report(error, None)
            return 500


class Script:
    def __init__(self, file, source, status):
        self.file = file
        self.made_from = signature(status)
        self.code = compile(source, file, 'exec', dont_inherit=True)
        self.dir = os.path.dirname(file)
        self.path = [] if is_path_safe() else [os.path.dirname(os.path.realpath(file))]
        self.modules = self.path[0] if self.path else ''    # key of the modules that it finds
        self.added_path = []    # the script's own additions to sys.path
        self.is_unbuffered = is_unbuffered(source)
        self.needs_visitor = False    # a module that it loads uses the request
        self.names = {
            '__file__': file, '__builtins__': builtins, '__cached__': None, '__doc__': None,
            '__loader__': SourceFileLoader('__main__', file),
        }
        if sys.version_info < (3, 14):
            self.names['__annotations__'] = {}

    def is_from(self, status):
        return signature(status) == self.made_from


def signature(status):
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev)


def is_path_safe():
    return getattr(sys.flags, 'safe_path', False) or sys.flags.isolated


def is_unbuffered(source):
    """Returns true if the first line asks for Python's -u."""
    words = source[2:source.find(b'\n')].split() if source[:2] == b'#!' else []
    options = [word for word in words[1:] if word[:1] == b'-' and word[:2] != b'--']
    return UNBUFFERED or any(b'u' in option for option in options)


# ---- the end of a script ----


def exit_code(exit):
    """Handles the argument of sys.exit as the interpreter does."""
    if exit.code is None or isinstance(exit.code, int):
        return (exit.code or 0) & 255
    flush(sys.stdout)
    log_error(exit.code)
    return 1


def report(error, traceback):
    """Handles an uncaught exception as the interpreter does."""
    error.__traceback__ = traceback
    try:
        show(error, traceback)
    except SystemExit as exit:
        return exit_code(exit), True
    except BaseException as second:
        log_error('Error in sys.excepthook:')
        second.__traceback__ = second.__traceback__.tb_next.tb_next    # not of this host
        sys.__excepthook__(type(second), second, second.__traceback__)
        log_error('\nOriginal exception was:')
        sys.__excepthook__(type(error), error, traceback)
    return 1, True


def refuse(file, reason, status):
    log_error('%s: %s' % (file, reason))
    return status


def flush(*streams):
    try:
        os.set_blocking(1, True)    # applies to the socket, also for later requests
    except OSError:
        pass
    for stream in streams:
        try:
            closed = stream is None or getattr(stream, 'closed', False)
        except ValueError:
            closed = True    # detached
        try:
            closed or stream.flush()
        except Exception as error:
            os.write(2, ('cannot flush: %s\n' % error).encode(errors='replace'))


def identity():
    """Returns the users and groups of this process, which a script may have changed."""
    return getresuid(), getresgid(), getgroups()


def place_of(status):
    return status[1:3]    # inode, device


def status_of(error, usual):
    """Returns 503 if this process or the system lacks a resource, else `usual`."""
    return 503 if getattr(error, 'errno', None) in EXHAUSTED else usual


def has_background_child():
    """Reaps children. Returns true if a process that the script has left could still write to this
    client during a later request. This process is the parent of all processes whose own parent has
    ended."""
    try:
        while waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    # Processes may start and end during a pass. A pass can miss a process with the socket only if
    # that process ends. Then its children become children of this process, and the next pass sees
    # them.
    before = None
    for _ in range(PASSES):
        try:
            found, is_whole = descendants_without(os.readlink('/proc/self/fd/1'))
        except OSError:
            return True
        if found is None:
            return True
        if is_whole and found == before:
            return False
        before = found if is_whole else None
    return True


def faults_of_children():
    """Returns the page faults of all children that have been waited for. The number grows with each
    of them."""
    with open('/proc/self/stat') as status:
        return int(status.read().rpartition(')')[2].split()[8])


def descendants_without(output):
    """Returns the descendants of this process, and true if all of them could be read. Returns None
    if one of them has the socket `output`."""
    found, is_whole = children_of('self'), True
    for process in found:
        try:
            if has_open(process, output):
                return None, True
            found += children_of(process)
        except (FileNotFoundError, ProcessLookupError):
            is_whole = False    # the process has ended
    return found, is_whole


def children_of(process):
    found = []
    for task in os.listdir('/proc/%s/task' % process):
        with open('/proc/%s/task/%s/children' % (process, task)) as children:
            found += children.read().split()
    return found


def has_open(process, output):
    """Returns true if a descriptor of the process is the socket `output`."""
    for descriptor in os.listdir('/proc/%s/fd' % process):
        try:
            if os.readlink('/proc/%s/fd/%s' % (process, descriptor)) == output:
                return True
        except FileNotFoundError:
            pass    # closed meanwhile
    return False
