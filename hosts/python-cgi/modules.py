# The modules that scripts see. Forebay appends this file to python-cgi.py, which has the imports.


class Local:
    """The modules outside the interpreter and its packages, as the scripts of a directory see them.
    They are loaded again when one of their files changes."""

    def __init__(self):
        self.modules = {}    # by name
        self.files = {}      # signatures by path
        self.hidden = {}     # installed modules that a module of the directory shadows
        self.names, self.names_of = frozenset(), None

    def has_changed(self):
        return any(signature_of(file) != known for file, known in self.files.items())


class Loading:
    """Loads modules without a visitor. A module stays loaded for later visitors, but is loaded in
    the request that first needs it. So while it is loaded, descriptor 0 is a pipe with one line,
    descriptor 1 a file, and the environment lacks the variables of the request. If a module turns
    out to need them, this one request gets them back, and the module does not stay: it would show
    that visitor to others, or do nothing for them. The same holds for a module that draws random
    numbers, which would be those of all visitors."""

    SAME = ('GATEWAY_INTERFACE', 'SCRIPT_FILENAME', 'SERVER_SOFTWARE')    # in all requests
    OF_REQUEST = (
        'AUTH_', 'CONTENT_', 'DOCUMENT_', 'HTTP', 'PATH_INFO', 'PATH_TRANSLATED', 'QUERY_',
        'REDIRECT_', 'REMOTE_', 'REQUEST_', 'SCRIPT_', 'SERVER_', 'SSL_', 'UNIQUE_ID')
    # Files that show the body or are random, and events (sys.audit) that start a program.
    OF_VISITOR = ('/dev/stdin', '/fd/0')
    RANDOM = ('/dev/urandom', '/dev/random')
    PROGRAMS = frozenset((
        'subprocess.Popen', 'os.system', 'os.posix_spawn', 'os.exec', 'os.fork', 'os.forkpty'))
    # numpy draws the seeds of its generators, and cannot be loaded twice.
    SEEDED = ('numpy',)

    def __init__(self, environment, streams, library):
        self.environment, self.streams, self.library = environment, streams, library
        self.active = False       # a script runs whose modules stay
        self.names = []           # the modules that are being loaded; each needs the next
        self.needs = None         # what one of them has used
        self.culprits = set()
        self.cover = None         # what hides the request, until a module needs it
        self.hears_events = False
        self.generator = None     # the state of the generator of the module random
        self.execute = _LoaderBasics.exec_module
        # The interpreter keeps these functions until it ends. With a reference to this object, they
        # would keep the standard output past the last text of destructors.
        self.known = known = reference_to(self)
        execute = self.execute

        def exec_module(loader, module):
            loading = known()
            if loading is None or not loading.active:
                return execute(loader, module)
            return loading.load(loader, module)

        _LoaderBasics.exec_module = exec_module
        for name in 'urandom', 'getrandom':
            if hasattr(os, name):
                self.watch(name, Loading.note_random)
        for name in 'read', 'readv', 'dup', 'dup2', 'sendfile', 'splice':
            if hasattr(os, name):
                self.watch(name, Loading.note_descriptor)

    def watch(self, name, note):
        """Tells this object of calls of a function of os while a module is loaded."""
        watched = Watched(getattr(os, name), note, self)
        setattr(os, name, watched)
        setattr(sys.modules['posix'], name, watched)

    def begin(self):
        self.active, self.needs = True, None
        self.culprits.clear()

    def note(self, what):
        self.needs = self.needs or '%s %s' % (self.names[-1], what)
        self.culprits.update(self.names)
        if self.cover is not None:
            cover, self.cover = self.cover, None
            cover.remove(self.environment)

    def note_descriptor(self, arguments):
        if 0 in arguments[:2]:
            self.note('uses standard input of the request')

    def note_random(self, _=None):
        if not self.is_trusted():
            self.note('draws random numbers, which would be those of all visitors,')

    def note_event(self, event, arguments):
        if event in self.PROGRAMS:
            self.note('starts a program, which sees the environment and input of the request')
            if event == 'os.exec':
                dup2(self.client, 1)
        elif event == 'open' and not self.is_library():
            path = arguments[0]
            if path == 0 and type(path) is int:
                self.note('uses standard input of the request')
            elif isinstance(path, (str, bytes)):
                path = os.fsdecode(path)
                if path.startswith(('/dev/', '/proc/')) and path.endswith(self.OF_VISITOR):
                    self.note('opens %s of the request' % path)
                elif path in self.RANDOM:
                    self.note_random()

    def is_library(self):
        """Returns true if the module that is being loaded belongs to the standard library."""
        file = file_of(sys.modules.get(self.names[-1]))
        return file is not None and file.startswith(self.library) and '-packages' not in file

    def is_trusted(self):
        return self.is_library() or self.names[-1].partition('.')[0] in self.SEEDED

    def load(self, loader, module):
        is_first = not self.names
        self.names.append(module.__name__)
        if is_first:
            self.generator = self.state_of_generator()
        elif self.needs is not None and self.cover is None and not self.is_library():
            self.culprits.add(module.__name__)    # sees the request
        try:
            if is_first:
                return self.load_watched(loader, module)
            return self.execute(loader, module)
        finally:
            before, self.generator = self.generator, self.state_of_generator()
            if before is not None and before != self.generator:
                self.note_random()
            self.names.pop()

    def state_of_generator(self):
        random = sys.modules.get('random')
        if hasattr(random, '_urandom'):
            random._urandom = os.urandom
        instance = getattr(random, '_inst', None)    # not before the module is loaded
        return None if instance is None else instance.getstate()

    def load_watched(self, loader, module):
        process, output, given = getpid(), sys.stdout, sys.stdin
        if not self.hears_events and not self.is_library():
            self.hears_events = True
            sys.addaudithook(hook_for(self.known))
        flush(output)
        printed, client = nameless_file(), dup(1)
        self.client = client
        dup2(printed, 1)
        if given is self.streams.input:
            sys.stdin = sys.__stdin__ = WatchedInput(given, self)
        watched = sys.stdin
        cover = self.cover = Cover(self, self.environment)
        try:
            self.execute(loader, module)
        finally:
            self.cover = None
            if cover.remove(self.environment) and getpid() == process:
                self.note('uses standard input of the request')
            if sys.stdin is watched:
                sys.stdin = sys.__stdin__ = given
            else:
                self.note('uses standard input of the request')
            if sys.stdout is not output:
                self.note('uses standard output of the request')
            flush(output, sys.stdout)
            dup2(client, 1)
            close(client)
            if getpid() == process and os.lseek(printed, 0, os.SEEK_END):
                self.note('uses standard output of the request')
                os.lseek(printed, 0, os.SEEK_SET)
                for piece in iter(lambda: read(printed, CHUNK), b''):
                    write_all(1, piece)
            close(printed)

    def look(self, name):
        """Notes that a module looks for a variable of the request, even if it is missing."""
        text = os.fsdecode(name) if isinstance(name, (str, bytes)) else ''
        if self.cover is not None and text not in self.SAME \
                and os.fsencode(text) not in self.environment.base \
                and (text.startswith(self.OF_REQUEST) or name in self.cover.hidden):
            self.note('uses %s of the request' % text)

    def look_at_all(self):
        if self.cover is not None:
            self.note('uses all variables of the request')


def hook_for(known):
    programs = Loading.PROGRAMS

    def hook(event, arguments):
        if event == 'open' or event in programs:
            loading = known()
            if loading is not None and loading.names:
                loading.note_event(event, arguments)

    return hook


class Watched:
    """A function that tells of its calls while a module is loaded. This is no function, so that a
    class can have it as an attribute, as it can have a built-in one."""

    def __init__(self, function, note, loading):
        self.function, self.note, self.known = function, note, reference_to(loading)
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    def __call__(self, *arguments, **keywords):
        loading = self.known()
        if loading is not None and loading.names:
            self.note(loading, arguments or tuple(keywords.values()))
        return self.function(*arguments, **keywords)

    def __getattr__(self, name):
        return getattr(self.function, name)

    def __repr__(self):
        return repr(self.function)


class Cover:
    """Hides the request, also from code in C and from programs: descriptor 0 becomes a pipe with
    one line, so that a read leaves a trace, and the variables of the request are removed."""

    def __init__(self, loading, environment):
        self.input, self.trap = dup(0), None
        self.trap, writer = os.pipe()
        write(writer, b'\n')
        close(writer)
        dup2(self.trap, 0)
        data, base = environment.data, environment.base
        same = [name.encode() for name in loading.SAME]
        self.hidden = {
            name: value for name, value in data.items()
            if base.get(name) != value and name not in same}
        for name in self.hidden:
            if name in base:
                os.putenv(name, base[name])
                data[name] = base[name]
            else:
                os.unsetenv(name)
                del data[name]
        self.shown = dict(data)
        WatchedVariables.loading = loading
        data.__class__ = WatchedVariables

    def remove(self, environment):
        """Shows the request again. The module's own changes of the environment stay. Returns true
        if the module has read from descriptor 0, or keeps a copy of it."""
        if self.trap is None:
            return False
        trap, self.trap = self.trap, None
        data = environment.data
        data.__class__, WatchedVariables.loading = Variables, None
        for name, value in self.hidden.items():
            if data.get(name) == self.shown.get(name):
                os.putenv(name, value)
                data[name] = value
        place = fstat(trap)[1:3]
        is_own = is_at(0, place)
        if is_own:
            dup2(self.input, 0)
        close(self.input)
        was_read = read(trap, 2) != b'\n'
        close(trap)
        return was_read or not is_own or has_copy(place)


def is_at(descriptor, place):
    try:
        return fstat(descriptor)[1:3] == place
    except OSError:
        return False


def has_copy(place):
    return any(is_at(int(name), place) for name in os.listdir('/proc/self/fd'))


class WatchedVariables(Variables):
    """The variables of the environment while a module is loaded."""

    loading = None

    def __getitem__(self, name):
        self.loading.look(name)
        return Variables.__getitem__(self, name)

    def get(self, name, default=None):
        self.loading.look(name)
        return Variables.get(self, name, default)

    def __contains__(self, name):
        self.loading.look(name)
        return Variables.__contains__(self, name)

    def __delitem__(self, name):
        self.loading.look(name)
        os.unsetenv(name)    # again, if the request has just been shown
        Variables.__delitem__(self, name)

    def __setitem__(self, name, value):
        self.loading.look(name)
        os.putenv(name, value)
        Variables.__setitem__(self, name, value)

    def __iter__(self):
        self.loading.look_at_all()
        return Variables.__iter__(self)

    def keys(self):
        self.loading.look_at_all()
        return Variables.keys(self)

    def items(self):
        self.loading.look_at_all()
        return Variables.items(self)

    def values(self):
        self.loading.look_at_all()
        return Variables.values(self)

    def copy(self):
        self.loading.look_at_all()
        return dict(self)

    def __len__(self):
        self.loading.look_at_all()
        return Variables.__len__(self)

    def __repr__(self):
        self.loading.look_at_all()
        return Variables.__repr__(self)


class WatchedInput:
    def __init__(self, stream, loading):
        self.stream, self.loading = stream, loading

    def __getattr__(self, name):
        if self.loading.names and name not in ('closed', 'encoding', 'errors', 'isatty', 'name'):
            self.loading.note('uses standard input of the request')
        return getattr(self.stream, name)

    def __iter__(self):
        return iter(self.__getattr__('readline'), '')


def signature_of(file):
    try:
        return signature(os.stat(file))
    except OSError:
        return None


class Modules:
    def __init__(self):
        self.path = [entry for entry in sys.path if entry]
        sys.path[:] = self.path
        prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
        within = tuple(os.path.join(prefix, '') for prefix in prefixes)
        self.library = os.path.join(os.path.dirname(os.__file__), '')
        self.installed = (self.library,) + tuple(
            os.path.join(entry, '') for entry in self.path if entry.startswith(within))
        self.known = set(sys.modules)
        self.local = {}
        self.current = Local()
        self.count = len(sys.modules)
        self.grew = False

    def enter(self, script):
        """Makes the modules visible that `script` would find in a new process."""
        self.grew = False
        sys.path[:] = script.path + self.path + script.added_path
        local = self.local.get(script.modules)
        if local is None:
            local = self.local[script.modules] = Local()
        if local is not self.current:
            self.show(Local())
            self.show(local)
        if local.files and local.has_changed():
            for name in local.modules:
                sys.modules.pop(name, None)
            local.modules, local.files = {}, {}
            gc.unfreeze()
            self.count, self.grew = 0, True
            for finder in list(sys.path_importer_cache.values()):
                getattr(finder, 'invalidate_caches', int)()
        self.hide_shadowed(script, local)

    def show(self, local):
        """Replaces the visible local modules with those of `local`."""
        for name in self.current.modules:
            sys.modules.pop(name, None)
        sys.modules.update(self.current.hidden)
        self.current.hidden = {}
        sys.modules.update(local.modules)
        self.current, self.count = local, 0

    def hide_shadowed(self, script, local=None):
        """Hides modules that have the name of a module in the script's directory. Modules that the
        interpreter loads at its start stay, as they take precedence in any process."""
        local = self.current if local is None else local
        changed = signature_of(script.path[0]) if script.path else None
        if changed != local.names_of:
            local.names, local.names_of = names_in(script.path), changed
        elif len(sys.modules) == self.count:
            return
        if local.names.isdisjoint(sys.modules):
            return
        for name in list(sys.modules):
            if name.partition('.')[0] in local.names and name not in local.modules \
                    and name not in STARTUP and name not in sys.builtin_module_names:
                local.hidden[name] = sys.modules.pop(name)

    def leave(self, script, culprits):
        """Records the modules that the script has loaded, and its additions to sys.path. If some of
        them, `culprits`, have used the request, drops them, and those that may have something of
        it from them."""
        if sys.path != script.path + self.path + script.added_path:
            self.note_path(script)
        if len(sys.modules) == self.count:
            return
        sys.modules.pop('__mp_main__', None)
        local = self.current
        for name, module in list(sys.modules.items()):
            if name in self.known or name in local.modules or name == '__main__':
                continue
            self.grew = True
            is_installed = self.is_installed(name, module)
            if name in culprits or culprits and not is_installed:
                sys.modules.pop(name, None)
            elif is_installed:
                self.known.add(name)
            else:
                local.modules[name] = module
                file = file_of(module)
                if file is not None:
                    local.files[file] = signature_of(file)
        self.count = len(sys.modules)

    def note_path(self, script):
        """Gives a script with its own sys.path its own modules, because other scripts in the
        directory may find other modules by the same names. Entries that modules add on import stay
        at the end of the path, because these modules are not loaded again."""
        usual = set(script.path + self.path)
        added = [entry for entry in dict.fromkeys(sys.path) if entry not in usual]
        script.added_path = added[:PATHS_KEPT]
        if script.modules != script.file and added:
            script.modules = script.file
            own = self.local[script.file] = Local()
            own.modules, own.files = dict(self.current.modules), dict(self.current.files)
            own.names, own.names_of = self.current.names, self.current.names_of
            own.hidden, self.current.hidden = self.current.hidden, {}
            self.current = own

    def is_installed(self, name, module):
        file = file_of(module)
        if file is not None:
            return file.startswith(self.installed)
        spec = getattr(module, '__spec__', None)
        if spec is not None and spec.origin is not None:
            return True    # built in, frozen, or a module of this host
        paths = list(getattr(module, '__path__', ()))
        if paths:
            return all(path.startswith(self.installed) for path in paths)
        return name.partition('.')[0] in self.known

    def of_standard_library(self, names):
        """Returns those of `names` that are modules of the standard library, in the order of
        loading."""
        found = []
        for name, module in list(sys.modules.items()):
            file = file_of(module) if name in names else None
            if file is not None and file.startswith(self.library) and '-packages' not in file:
                found.append(name)
        return found

    def preload(self, names):
        """Loads the modules that a fork has loaded, so that the next fork has them already."""
        for name in names:
            try:
                __import__(name)
            except BaseException as error:
                log_error('cannot load %s: %s' % (name, error))


def file_of(module):
    file = getattr(module, '__file__', None)
    return file if isinstance(file, str) and os.path.isabs(file) else None


def names_in(path):
    """Returns the names of the modules and packages in the directory `path[0]`."""
    try:
        entries = os.listdir(path[0])
    except (IndexError, OSError):
        return frozenset()
    packages = [
        entry for entry in entries
        if '.' not in entry and os.path.exists(os.path.join(path[0], entry, '__init__.py'))]
    files = [entry.partition('.')[0] for entry in entries if entry.endswith(('.py', '.so'))]
    return frozenset(files + packages)


class Replacements:
    """The modules cgi and cgitb, if neither the interpreter (3.13 and later lack them) nor a
    package has them."""

    def __init__(self, sources):
        self.sources = sources

    def find_spec(self, name, path=None, target=None):
        if name in self.sources:
            return type(sys.__spec__)(name, self, origin='<forebay %s.py>' % name)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec(compile(self.sources[module.__name__], module.__spec__.origin, 'exec'),
             module.__dict__)

    def get_source(self, name):
        return self.sources[name]
