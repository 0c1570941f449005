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

    def leave(self, script):
        """Records the modules that the script has loaded, and its additions to sys.path."""
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
            if self.is_installed(name, module):
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
