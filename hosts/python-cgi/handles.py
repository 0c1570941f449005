# Files of scripts that outlive their request. Forebay appends this file to python-cgi.py, which has
# the imports.


class Handles:
    """Files with unwritten text that a module or another object keeps. The host writes their text
    before the end of each request, so that it cannot reach the client of a later request.

    The garbage collector lists all of them. An object that a request makes and that survives is in
    the two young generations, unless a collection during the request has moved it to the old
    one."""

    KINDS = ('TextIOWrapper', 'BufferedWriter', 'BufferedRandom')

    def __init__(self):
        self.kinds = tuple(getattr(io, name) for name in self.KINDS)
        self.knows_pyio = False
        self.kept = []           # a weak reference to each file, and the kind of the file
        self.others = set()      # types that stay, and are not in `kinds`
        self.was_frozen = False
        # The first object of a request that the collector tracks. While this object is in a young
        # generation, all objects of the request are.
        self.first = None
        self.freeze = note_calls(gc, 'freeze', self.note_freeze)
        self.learn(gc.get_objects())

    def note_freeze(self):
        self.was_frozen = True    # the script hides its objects from the collector

    def collect(self, may_be_old):
        """Collects the garbage of the script, and records files among the surviving objects."""
        if self.was_frozen:
            gc.unfreeze()
            self.was_frozen, may_be_old = False, True
        if may_be_old and not self.knows_pyio and '_pyio' in sys.modules:
            self.add_pyio(sys.modules['_pyio'])
        objects = gc.get_objects(1)
        if may_be_old or not objects or objects[0] is not self.first:
            del objects
            gc.collect()
            objects = gc.get_objects()
            self.note(objects)
            if may_be_old:
                self.learn(objects)
            del objects
        else:
            objects += gc.get_objects(0)
            self.note(objects)
            del objects
            gc.collect(1)
        if may_be_old:
            self.freeze()
        self.first = []

    def add_pyio(self, module):
        """Adds the classes of the io module that is written in Python."""
        kinds = [getattr(module, name, None) for name in self.KINDS]
        self.kinds += tuple(kind for kind in kinds if isinstance(kind, type))
        self.knows_pyio = True

    def learn(self, objects):
        """Records the classes of modules, which later calls need not check again."""
        self.others.update(
            kind for kind in objects
            if issubclass(type(kind), type) and not issubclass(kind, self.kinds))

    def note(self, objects):
        types = set(map(type, objects))
        if types <= self.others:
            return
        for kind in types - self.others:
            if issubclass(kind, self.kinds):
                self.note_files(objects, kind)
            elif not kind.__flags__ & HEAP_TYPE:
                self.others.add(kind)

    def note_files(self, objects, kind):
        known = {id(reference()) for reference, _ in self.kept}
        base = next(base for base in self.kinds if issubclass(kind, base))
        for file in objects:
            if type(file) is kind and id(file) not in known:
                self.kept.append((reference_to(file), base))

    def flush(self):
        """Writes the remaining text of files. Returns false if that fails, because the text would
        be written later."""
        self.note(gc.get_objects(0))
        return not self.kept or self.flush_kept()

    def flush_kept(self):
        sound, alive = True, []
        for reference, base in self.kept:
            file = reference()
            try:
                # Uses the methods of the interpreter's type, because a subclass of the script may
                # override them.
                if file is None or base.closed.__get__(file):
                    continue
                alive.append((reference, base))
                base.flush(file)
            except Exception as error:
                if not is_detached(file, base):
                    sound = False
                    log_error('cannot write what a script has left in a file: %s' % error)
        self.kept = alive
        return sound


class CLibrary:
    """The C library of the interpreter, which has files with buffers of its own."""

    def __init__(self):
        try:
            import ctypes
            self.write_all = ctypes.CDLL(None).fflush
        except (ImportError, AttributeError, OSError):
            self.write_all = None    # scripts have no ctypes either

    def flush(self):
        """Writes the remaining text of all files. Returns false if that fails, because the text
        would be written later."""
        return self.write_all is None or self.write_all(None) == 0


def is_detached(file, base):
    """Returns true if a file has detached its buffer, and so has no text."""
    try:
        base.closed.__get__(file)
        return False
    except (ValueError, AttributeError):    # the latter from _pyio
        return True


def note_calls(module, name, note):
    """Calls `note` whenever a script calls this function of a module. Returns the original
    function."""
    function = getattr(module, name)

    def noted(*arguments):
        note()
        return function(*arguments)

    setattr(module, name, noted)
    return function
