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
    """Watches what modules do while they are loaded. A module stays loaded for later visitors, but
    is loaded in the request that first needs it. So a module that prints then, reads standard
    input, or looks at variables of the request must not stay: it would show that visitor to others,
    or do nothing for them."""

    SAME = ('GATEWAY_INTERFACE', 'SCRIPT_FILENAME', 'SERVER_SOFTWARE')    # in all requests
    OF_REQUEST = (
        'AUTH_', 'CONTENT_', 'DOCUMENT_', 'HTTP', 'PATH_INFO', 'PATH_TRANSLATED', 'QUERY_',
        'REDIRECT_', 'REMOTE_', 'REQUEST_', 'SCRIPT_', 'SERVER_', 'SSL_', 'UNIQUE_ID')

    def __init__(self, environment, streams):
        self.environment, self.streams = environment, streams
        self.active = False       # a script runs whose modules stay
        self.names = []           # the modules that are being loaded; each needs the next
        self.needs = None         # what one of them has used
        self.culprits = set()
        self.get, self.iterate = os._Environ.__getitem__, os._Environ.__iter__
        self.execute = _LoaderBasics.exec_module
        # The interpreter keeps this function until it ends. With a reference to this object, it
        # would keep the standard output past the last text of destructors.
        known, execute = reference_to(self), self.execute

        def exec_module(loader, module):
            loading = known()
            if loading is None or not loading.active:
                return execute(loader, module)
            return loading.load(loader, module)

        _LoaderBasics.exec_module = exec_module

    def begin(self):
        self.active, self.needs = True, None
        self.culprits.clear()

    def note(self, what):
        self.needs = self.needs or '%s uses %s' % (self.names[-1], what)
        self.culprits.update(self.names)

    def load(self, loader, module):
        is_first = not self.names
        self.names.append(module.__name__)
        try:
            if is_first:
                return self.load_watched(loader, module)
            return self.execute(loader, module)
        finally:
            self.names.pop()

    def load_watched(self, loader, module):
        process, output, given = getpid(), sys.stdout, sys.stdin
        flush(output)
        printed, client = nameless_file(), dup(1)
        os.dup2(printed, 1)
        if given is self.streams.input:
            sys.stdin = sys.__stdin__ = WatchedInput(given, self)
        watched = sys.stdin
        os._Environ.__getitem__ = lambda environ, key: self.get_watched(environ, key)
        os._Environ.__iter__ = lambda environ: self.iterate_watched(environ)
        try:
            self.execute(loader, module)
        finally:
            os._Environ.__getitem__, os._Environ.__iter__ = self.get, self.iterate
            if sys.stdin is watched:
                sys.stdin = sys.__stdin__ = given
            else:
                self.note('standard input')
            if sys.stdout is not output:
                self.note('standard output')
            flush(output, sys.stdout)
            os.dup2(client, 1)
            os.close(client)
            if getpid() == process and os.lseek(printed, 0, os.SEEK_END):
                self.note('standard output')
                os.lseek(printed, 0, os.SEEK_SET)
                for piece in iter(lambda: os.read(printed, CHUNK), b''):
                    write_all(1, piece)
            os.close(printed)

    def get_watched(self, environ, key):
        name = os.fsdecode(key) if isinstance(key, (str, bytes)) else ''
        if name not in self.SAME and os.fsencode(name) not in self.environment.base \
                and (name.startswith(self.OF_REQUEST) or os.fsencode(name) in self.environment.data):
            self.note(name)
        return self.get(environ, key)

    def iterate_watched(self, environ):
        self.note('all variables')
        return self.iterate(environ)


class WatchedInput:
    def __init__(self, stream, loading):
        self.stream, self.loading = stream, loading

    def __getattr__(self, name):
        if self.loading.names and name not in ('closed', 'encoding', 'errors', 'isatty', 'name'):
            self.loading.note('standard input')
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
