# Mode `prove`: what a request leaves in a Python process. A snapshot has a digest for each variable
# that outlives a request: attributes of modules and classes, closures, default arguments, caches.
# The variables whose digests differ from those before the request are its traces. Whether a trace
# depends on the request can only be seen from several requests, so Forebay
# (crates/forebay-workers/src/proofs.rs) decides that. Forebay appends this file to its hosts, which
# have the imports.
import _locale
import _signal
import _thread
import _warnings
import atexit
import builtins
import gc
import hashlib
import os
import re
import sys
import time
import weakref

MAX_NODES, MAX_SECONDS, MAX_TRACES, MAX_DEPTH = 500000, 3, 3000, 40
MAX_ELEMENTS, ELEMENT_DEPTH = 256, 5    # of containers whose elements are traces of their own
CHECK_INTERVAL = 500                    # of kept requests that are checked
CHECK_SHARE = 0.005                     # of processor time that checks may take
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
FUNCTION, MODULE, METHOD = type(re.compile), type(re), type(''.join)
CELL = type((lambda x: lambda: x)(0).__closure__[0])
# Objects that hold no values of a request, or that other variables show.
OPAQUE = (MODULE, type, METHOD, type(serve.__code__), type(sys._getframe()), CELL)
# Addresses, and names that asgiref makes of them.
ADDRESS = re.compile(r' at 0x[0-9a-f]+|(?<=_asgiref_local_impl_)\d+_\w+')
# Variables that hold a request until the next one begins, and then are bound to that; and counters
# of libraries.
HARMLESS = re.compile(
    r' in function bottle\.Local(?:Request|Response)\.|\._count_get_resource_inst(?:_init)?$')
# Attributes of modules that the interpreter sets.
OF_IMPORT = frozenset((
    '__builtins__', '__cached__', '__doc__', '__file__', '__loader__', '__name__', '__package__',
    '__path__', '__spec__', '__annotations__', '__annotate__', '__conditional_annotations__'))
OF_CLASS = frozenset((
    '__dict__', '__weakref__', '__doc__', '__module__', '__annotations__', '__slots__',
    '__qualname__', '__match_args__', '__abstractmethods__', '_abc_impl', '__firstlineno__',
    '__static_attributes__', '__parameters__', '__orig_bases__', '__annotate__',
    '__annotate_func__', '__annotations_cache__', '__dataclass_fields__', '__dataclass_params__'))


class TooLarge(Exception):
    pass


class Walk:
    """One walk over the variables of this process. `before`: an earlier walk, from which `traces`
    are the differences. `kept`: directories of modules that are compared, and those whose new
    modules are one trace each."""

    compares_environment = False    # the host for CGI scripts sets it anew for each request

    def __init__(self, library, before=None):
        self.library, self.before = library, before
        self.leaves, self.traces, self.faults = {}, [], []
        self.seen, self.path = {}, ''
        # Each object belongs to the path on which the first walk has met it, and is walked there. If
        # it belonged to the first path of each walk, an attribute that a request adds would seem to
        # change all objects behind it.
        self.owned, self.foreign = {}, {}
        self.known = before.owned if before is not None else {}
        self.fold = None
        self.begin()
        self.modules = frozenset(sys.modules)
        # What a request adds to a module of the standard library is not the library's.
        self.names = before.names if before is not None else {
            name: frozenset(vars(module)) for name, module in list(sys.modules.items())
            if isinstance(module, MODULE)}
        try:
            self.process()
            self.of_process = frozenset(self.leaves)
            for name in sorted(sys.modules):
                self.module(name, sys.modules[name])
            self.known = {}
            for path, value in sorted(self.foreign.values(), key=lambda pair: pair[0]):
                if id(value) not in self.seen:
                    self.element('what was ' + path, value, 0)
        except TooLarge:
            self.faults.append(('the variables', 'more variables than a proof can compare'))
        else:
            if before is not None:
                gone = before.leaves.keys() - self.leaves.keys()
                self.traces += [(path, 'a0:', '') for path in sorted(gone)]
        self.seen, self.foreign = {}, {}

    def begin(self):
        """Begins the limits of a walk. They count processor time, because a busy machine is no fault
        of the script."""
        now = time.time()
        self.nodes, self.clock = 0, (now - 60, now + 1)
        self.deadline = time.process_time() + MAX_SECONDS

    def record(self, path, kind, text):
        if self.fold is not None:
            self.fold.append('%s=%s%d:%s' % (path, kind, len(text), text))
            return
        if kind == 'u' or HARMLESS.search(path):
            return    # as if it were not there
        data = text.encode(errors='surrogateescape') if isinstance(text, str) else text
        digest = '%s%d:%s' % (
            kind, len(data), hashlib.blake2b(PROOF_SALT + data, digest_size=10).hexdigest())
        self.leaves[path] = digest
        if self.before is not None and self.before.leaves.get(path) != digest:
            self.traces.append((path, digest, text))

    # ---- what is walked ----

    def module(self, name, module):
        file = getattr(module, '__file__', None)
        if type(module).__module__ == 'forebay_host' or name == '__main__' \
                or not isinstance(module, MODULE):
            return
        names = vars(module)
        is_installed = isinstance(file, str) and '-packages' in file
        if not isinstance(file, str) or file.startswith(self.library) and not is_installed:
            # process() has the state of the standard library.
            known = self.names.get(name)
            if known is None:    # loaded by a request, or made by it
                known = names if names.get('__spec__') is not None else ()
            for attribute in sorted(key for key in names if isinstance(key, str) and key not in known):
                if attribute not in OF_IMPORT:
                    self.variable('%s.%s' % (name, attribute), names[attribute], name)
            return
        folds = is_installed and self.before is not None and name not in self.before.modules
        if folds:
            self.fold = []
        for attribute in sorted(key for key in names if isinstance(key, str)):
            if attribute not in OF_IMPORT:
                self.variable('%s.%s' % (name, attribute), names[attribute], name)
        if folds:
            text, self.fold = '\n'.join(self.fold), None
            path = 'all variables of module %s' % name
            self.record(path, 'f', text)
            self.leaves.pop(path, None)    # the next walk has its variables one by one

    def variable(self, path, value, module):
        if isinstance(value, type):
            if value.__module__ == module or is_stray(value):
                self.class_(path, value, module)
        elif isinstance(value, (classmethod, staticmethod)):
            self.variable(path, value.__func__, module)
        elif isinstance(value, property):
            for part in value.fget, value.fset:
                if part is not None:
                    self.variable(path, part, module)
        elif isinstance(value, FUNCTION):
            self.function(path, value, module)
        elif type(value).__name__ == '_lru_cache_wrapper':
            if not self.is_known(value):
                self.path = path
                self.record('the cache of %s' % path, 'f', self.cache(value))
            self.function(path, getattr(value, '__wrapped__', None), module)
        elif not isinstance(value, OPAQUE):
            self.element(path, value, 0)

    def class_(self, path, value, module):
        if self.is_known(value):
            return
        for attribute, item in sorted(vars(value).items()):
            if attribute not in OF_CLASS and not (
                    type(item).__name__.endswith('_descriptor') or item is Ellipsis):
                self.variable('%s.%s' % (path, attribute), item, module)

    def function(self, path, value, module):
        if not isinstance(value, FUNCTION) or self.is_known(value) \
                or value.__module__ != module and not is_stray(value):
            return
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
            try:
                content = cell.cell_contents
            except ValueError:
                continue
            if not self.is_known(cell) and not isinstance(content, OPAQUE):
                self.variable('%s in function %s' % (name, path), content, module)
        is_new = is_stray(value)
        if is_new:    # its module's variables are walked nowhere else
            for name in value.__code__.co_names:
                if name in value.__globals__ and not name.startswith('__'):
                    self.element('%s in function %s' % (name, path), value.__globals__[name], 0)
        defaults = (value.__defaults__ or ()) + tuple((value.__kwdefaults__ or {}).values())
        for index, item in enumerate(defaults):
            if not isinstance(item, OPAQUE + (FUNCTION,)) and (is_new or not isinstance(item, PLAIN)):
                number = '[%d]' % index if index else ''
                self.element('a default argument of %s%s' % (path, number), item, 0)
        for name, item in sorted(vars(value).items()):
            if name != '__wrapped__':
                self.variable('%s.%s' % (path, name), item, module)

    def cache(self, wrapper):
        # The referents are the keys, the results, and the table of both.
        found = []
        for part in gc.get_referents(wrapper):
            if part is vars(wrapper) or isinstance(part, OPAQUE + (FUNCTION,)):
                continue
            if isinstance(part, dict):
                found += [self.text(item, 1) for item in part.values()
                          if type(item).__name__ != '_lru_list_elem']
            else:
                found.append(self.text(part, 1))
        return '%d %s' % (wrapper.cache_info().currsize, ','.join(sorted(found)))

    def element(self, path, value, depth):
        """Records a value: as a whole, or with each of its elements or attributes."""
        self.path = path
        if isinstance(value, PLAIN):
            kind = 'u' if value is None else 'n' if isinstance(value, (int, float)) else 't'
            return self.record(path, kind, self.plain(value))
        if isinstance(value, OPAQUE + (FUNCTION,)):
            if isinstance(value, FUNCTION) and is_stray(value):
                self.function(path, value, None)
            return
        is_dict, is_list = isinstance(value, dict), isinstance(value, (list, tuple))
        names = attributes_of(value)
        if depth > ELEMENT_DEPTH or not (is_dict or is_list or names) or self.is_elsewhere(value) \
                or (is_dict or is_list) and len(value) > MAX_ELEMENTS or len(names) > MAX_ELEMENTS:
            return self.record(path, 'f', self.text(value, 0))
        self.count(value)
        self.own(value)
        self.record(path, 'c', type(value).__name__)
        if is_dict:
            items = [(self.text(key, 1), item) for key, item in list(dict.items(value))]
            for key, item in sorted(items, key=lambda pair: pair[0]):
                self.element('%s[%s]' % (path, key), item, depth + 1)
        elif is_list:
            if value:
                self.record('the length of %s' % path, 'n', str(len(value)))
            for index, item in enumerate(tuple(value)):
                self.element('%s[%d]' % (path, index), item, depth + 1)
        for name in sorted(names):
            self.element('%s.%s' % (path, name), names[name], depth + 1)

    def is_known(self, value):
        if id(value) in self.seen:
            return True
        self.seen[id(value)] = value
        return False

    def is_elsewhere(self, value):
        """Returns true if an object is walked on another path than this one."""
        if id(value) in self.seen:
            return True
        reference, path = self.known.get(id(value), (None, self.path))
        if path == self.path or reference() is not value:
            return False
        self.foreign[id(value)] = path, value
        return True

    def own(self, value):
        self.seen[id(value)] = value
        if not isinstance(value, (type, FUNCTION)):
            try:
                self.owned[id(value)] = weakref.ref(value), self.path
            except TypeError:
                pass    # a list or the like, which is part of an object
        self.watch(value)

    def count(self, value):
        self.nodes += 1
        if self.nodes > MAX_NODES or not self.nodes % 1000 and time.process_time() > self.deadline:
            raise TooLarge

    def plain(self, value):
        """Returns a text that is the same in each process."""
        if isinstance(value, bytes):
            return value.decode('latin-1')
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if self.clock[0] <= value <= self.clock[1]:
                return 'NOW'
            if value == os.getpid():
                return 'PID'
        text = str(value)
        return text if len(text) > 65536 else ADDRESS.sub(' ADDRESS', text)

    def text(self, value, depth):
        """Returns the whole value as one text."""
        self.count(value)
        if value is None:
            return 'None'
        if isinstance(value, PLAIN):
            text = self.plain(value)
            return 't%d:%s' % (len(text), text)
        if isinstance(value, OPAQUE):
            return type(value).__name__
        name = type(value).__name__
        if self.is_elsewhere(value):
            return name + ' again'
        if depth > MAX_DEPTH:
            raise TooLarge
        self.own(value)
        if isinstance(value, FUNCTION):
            parts = [self.text(cell.cell_contents, depth + 1) for cell in value.__closure__ or ()
                     if is_full(cell)]
            return 'function %s(%s)' % (value.__qualname__, ','.join(parts))
        parts = []
        if isinstance(value, dict):
            parts += sorted('%s=%s' % (self.text(key, depth + 1), self.text(item, depth + 1))
                            for key, item in list(dict.items(value)))
        elif isinstance(value, (list, tuple)):
            parts += [self.text(item, depth + 1) for item in tuple(value)]
        elif isinstance(value, (set, frozenset)):
            parts += sorted(self.text(item, depth + 1) for item in tuple(value))
        elif isinstance(value, bytearray):
            parts.append(value.decode('latin-1'))
        elif name in ('BytesIO', 'StringIO') and type(value).__module__ == '_io':
            parts.append('closed' if value.closed else self.plain(value.getvalue()))
        elif name == 'array' and type(value).__module__ == 'array':
            parts.append(self.plain(value.tobytes()))
        elif name == 'ContextVar':
            parts.append(self.text(value.get(None), depth + 1))
        names = attributes_of(value)
        parts += ['.%s=%s' % (key, self.text(names[key], depth + 1)) for key in sorted(names)]
        if not parts and type(value).__module__ not in ('_thread', '_io', '_weakref', 'weakref'):
            parts = [self.text(part, depth + 1) for part in gc.get_referents(value)
                     if not isinstance(part, OPAQUE + (FUNCTION,))]
        return '%s(%s)' % (name, ','.join(parts))

    def watch(self, value):
        """Notes a database connection whose transaction is open."""
        if not type(value).__name__.lower().endswith('connection'):
            return
        try:
            is_open = getattr(value, 'in_transaction', False) is True
            status = getattr(value, 'get_transaction_status', None)
            is_open = is_open or status is not None and status() in (2, 3)
        except Exception:
            return
        if is_open:
            self.faults.append((self.path, 'a transaction is left open'))

    # ---- the process, with the standard library ----

    def refresh(self):
        """Takes the state of the process again, because the host has changed it since."""
        for path in self.of_process:
            self.leaves.pop(path, None)
        self.before = None
        self.begin()
        self.process()
        self.seen = {}

    def process(self):
        library = sys.modules.get
        state = {
            'the current directory': os.getcwd, 'the umask': umask,
            'sys.path': lambda: list(sys.path), 'sys.excepthook': lambda: name_of(sys.excepthook),
            'sys.meta_path': lambda: [name_of(type(finder)) for finder in sys.meta_path],
            'the recursion limit': sys.getrecursionlimit,
            'the locale': lambda: _locale.setlocale(_locale.LC_ALL),
            'warnings.filters': lambda: [str(entry) for entry in _warnings.filters],
            'the functions of atexit': getattr(atexit, '_ncallbacks', int),
            'the garbage collector': lambda: (gc.isenabled(), gc.get_threshold()),
            'the names of builtins': lambda: sorted(vars(builtins)),
            'the signal handlers': lambda: [
                (number, name_of(_signal.getsignal(number))) for number in range(1, 32)],
        }
        if self.compares_environment:
            state['os.environ'] = lambda: dict(os.environ)
        if library('socket'):
            state['socket.getdefaulttimeout()'] = library('socket').getdefaulttimeout
        if library('tempfile'):
            state['tempfile.tempdir'] = lambda: library('tempfile').tempdir
        if library('csv'):
            state['csv.field_size_limit()'] = library('csv').field_size_limit
        if library('decimal'):
            state['the decimal context'] = lambda: str(library('decimal').getcontext())
        if library('logging'):
            state['the handlers of logging'] = lambda: handlers_of(library('logging'))
        if library('urllib.request'):
            state['urllib.request._opener'] = lambda: library('urllib.request')._opener
        for path, get in state.items():
            self.path = path
            try:
                value = get()
            except Exception as error:
                value = type(error).__name__
            self.record(path, 'f', self.text(value, 0))
        opened = {}
        for number in os.listdir('/proc/self/fd'):
            try:
                target = re.sub(r'\[\d+\]$', '', os.readlink('/proc/self/fd/' + number))
            except OSError:
                continue
            target = re.sub(r'/(?:#\d+|tmp\w+) \(deleted\)$', '/a temporary file', target)
            if int(number) > 2 and not target.startswith('/proc/'):
                opened[target] = opened.get(target, 0) + 1
        for target in sorted(opened):
            self.record('descriptors of ' + target, 'n', str(opened[target]))


def attributes_of(value):
    """Returns the attributes of an object, without calling code of its class."""
    try:
        names = object.__getattribute__(value, '__dict__')
    except AttributeError:
        names = {}
    if isinstance(value, _thread._local):
        names = value.__dict__    # those of this thread
    names = {ADDRESS.sub(' ADDRESS', key): names[key] for key in list(names) if isinstance(key, str)} \
        if isinstance(names, dict) else {}
    for class_ in type(value).__mro__:
        slots = class_.__dict__.get('__slots__', ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            member = class_.__dict__.get(name)
            if type(member).__name__ == 'member_descriptor':
                try:
                    names[name] = member.__get__(value)
                except AttributeError:
                    pass    # not set
    return names


def is_stray(value):
    """Returns true for a class or function that code of a request may have made: its module does not
    have it under its name."""
    module = sys.modules.get(value.__module__)
    if module is None or value.__module__ == '__main__':
        return True
    names = value.__qualname__.split('.')
    return '<' not in value.__qualname__ and names[0] not in vars(module)


def is_full(cell):
    try:
        return not isinstance(cell.cell_contents, OPAQUE)
    except ValueError:
        return False


def umask():
    mask = os.umask(0o77)
    os.umask(mask)
    return mask


def name_of(value):
    return getattr(value, '__qualname__', None) or str(value)


def handlers_of(logging):
    loggers = [('root', logging.root)] + sorted(
        (name, logger) for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger))
    return [(name, logger.level, [type(handler).__name__ for handler in logger.handlers],
             len(logger.filters)) for name, logger in loggers if logger.handlers or logger.level]


# ---- what is a finding at once ----


def faults_of_request():
    """Returns what no later request could stand."""
    faults = []
    if _signal.alarm(0) or _signal.getitimer(0)[0]:
        faults.append(('alarm', 'an alarm is left, which would go off in a later request'))
    threading = sys.modules.get('threading')
    daemons = [thread for thread in threading.enumerate() if thread.daemon] if threading else []
    if daemons:
        faults.append(('threads', 'a thread is left'))
    with open('/proc/self/task/%d/children' % os.getpid()) as children:
        if children.read().strip():
            faults.append(('child processes', 'a child process is left'))
    return faults


# ---- what depends on the visitor ----


def inputs_of(environment, body=b''):
    """Returns what in a request may name its visitor: name, value, and whether it alone identifies
    one."""
    from urllib.parse import parse_qsl, unquote_plus

    def value(name):
        return os.fsdecode(environment.get(name, b''))
    address = value(b'REMOTE_ADDR')
    inputs = [
        ('the user', value(b'REMOTE_USER'), True),
        ('the address', '' if address.startswith('127.') or address == '::1' else address, True),
        ('the field Authorization', value(b'HTTP_AUTHORIZATION'), True),
        ('PATH_INFO', value(b'PATH_INFO'), False)]
    for pair in value(b'HTTP_COOKIE').split(';'):
        name, _, content = pair.strip().partition('=')
        inputs.append(('the cookie "%s"' % name, unquote_plus(content), True))
    form = body.decode('latin-1') if 'urlencoded' in value(b'CONTENT_TYPE') else ''
    for text in value(b'QUERY_STRING'), form:
        try:
            pairs = parse_qsl(text, keep_blank_values=True)
        except ValueError:
            pairs = [('the query', text)]
        inputs += [('the parameter "%s"' % name, content, False) for name, content in pairs]
    return [entry for entry in inputs if len(entry[1]) > 1]


def source_of(inputs, path, text):
    """Returns the input that a value contains, or ''."""
    is_module = path.startswith('all variables of')
    for name, value, identifies in inputs:
        if is_module and not identifies:
            continue
        whole = 't%d:%s' % (len(value), value)
        is_whole = text == value or whole in text or whole in path
        if is_whole and len(value) >= (2 if identifies else 4):
            return name
        if len(value) >= (4 if identifies else 8) and (value in text or value in path):
            return name
    return ''


# ---- the report ----


def report_of(walk, inputs, faults, begun, script):
    """Returns the lines about a request: one for each trace, and one for the end."""
    lines = []
    traces = [(path, '', '', why) for path, why in faults + walk.faults]
    for path, digest, text in walk.traces:
        source = source_of(inputs, path, text)
        traces.append((path, digest, text, 'it holds %s' % source if source else ''))
    if len(traces) > MAX_TRACES:
        why = 'a request changes more than %d of them' % MAX_TRACES
        traces = [trace for trace in traces if trace[3]][:10] + [('the variables', '', '', why)]
    for path, digest, text, why in traces:
        shown = text[:60] if SHOWS_VALUES else ''
        place = place_of_variable(path, script) if why or len(lines) < 100 else ''
        words = [path, digest, shown, place, why]
        lines.append(' '.join(['trace'] + [encoded(word) for word in words]))
    text = '\0'.join(name + '\0' + value for name, value, _ in inputs)
    data = PROOF_SALT + text.encode(errors='surrogateescape')
    digest = hashlib.blake2b(data, digest_size=8).hexdigest()
    lines.append('end %s %d' % (digest, int(1e6 * (time.time() - begun))))
    return lines


def encoded(text):
    data = text.encode(errors='surrogateescape')
    if len(data) > 300:
        data = data[:250] + b'...'
    return ''.join(
        chr(byte) if 33 <= byte <= 126 and byte != 37 else '%%%02X' % byte for byte in data) or '-'


def tell_proof(file, token, how, lines):
    begin = ' '.join((PROOF_KEY, how, encoded(file), token))
    for line in lines:
        if len(line) < 3000 and line.isprintable():
            os.write(2, ('%s %s\n' % (begin, line)).encode())


TEXT_OF = {}


def place_of_variable(path, script):
    """Returns the file and line that seem to assign a variable, or ''."""
    path = re.sub(r'^(?:the length of )?(?:(?:a default argument of|the cache of|\w+ in function) )?', '', path)
    plain = re.match(r'[\w.]+', path)
    words = plain.group().split('.') if plain else []
    for count in range(len(words) - 1, 0, -1):
        module = sys.modules.get('.'.join(words[:count]))
        if module is None:
            continue
        file = getattr(module, '__file__', None) or ''
        # The name of an attribute says more than that of its object.
        names = list(reversed(words[count:]))
        if len(names) > 1:
            names.insert(0, names[1] + '.' + names[0])
        for name in names:
            for place, before in (script, r'\.'), (file, r'\b'):
                number = line_that_assigns(place, before, name)
                if number:
                    return '%s line %d' % (place, number)
        return ''
    return ''


def line_that_assigns(file, before, name):
    """Returns the number of the last line that assigns the name, or 0."""
    if file not in TEXT_OF:
        TEXT_OF[file] = text_of_file(file)
    text, found = TEXT_OF[file], 0
    for match in re.finditer(before + re.escape(name) + r'\b', text):
        start = text.rfind('\n', 0, match.start()) + 1
        end = text.find('\n', start)
        line = text[start:end if end >= 0 else None]
        if not line.lstrip().startswith('#') and assigns(line, before + re.escape(name), name):
            found = text.count('\n', 0, start) + 1
    return found


def text_of_file(file):
    try:
        if os.stat(file).st_size > 1000000:
            return ''
        with open(file, encoding='utf-8', errors='replace') as text:
            return text.read()
    except OSError:
        return ''


def assigns(line, pattern, name):
    return re.search(
        r'%s\b\s*(?:\[[^]]*\]\s*)*(?::[^=]*)?(?:[-+*/|&^%%@]|//|\*\*|<<|>>)?=(?!=)'
        r'|%s\b\s*(?:\[[^]]*\]\s*)*\.(?:append|add|update|setdefault|extend|insert|appendleft|pop|'
        r'remove|clear|discard|set)\(|\bdef %s\b' % (pattern, pattern, re.escape(name)), line)


# ---- checks of kept requests ----


class Checks:
    """Compares this process with its state at the last check, and tells Forebay. The first requests
    are checked more often, because what grows with each request shows only here."""

    def __init__(self, library):
        self.library, self.of_file, self.used = library, {}, 0

    def count(self, file, token, environment):
        """Counts a kept request, and checks some of them."""
        runs, check, last, checked = self.of_file.get(file, (0, 1, None, 0))
        runs += 1
        if last is not None and last[0] != token:
            runs, check, last, checked = 1, 1, None, 0
        if runs >= check:
            begun, since = time.time(), time.process_time() - self.used
            walk = Walk(self.library, last and last[1])
            if last is not None:
                lines = report_of(walk, inputs_of(environment), [], begun, file)
                tell_proof(file, token, 'kept', lines)
            walk.before = None
            last = token, walk
            self.used = time.process_time()
            interval = (runs - checked) * (time.time() - begun) / (CHECK_SHARE * max(since, 1e-3))
            checked = runs
            check = runs + 1 if runs < 2 else 2 * runs - 1 if runs < CHECK_INTERVAL \
                else runs + max(CHECK_INTERVAL, int(interval))
        self.of_file[file] = runs, check, last, checked
