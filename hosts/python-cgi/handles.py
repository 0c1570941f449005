# Files of scripts that outlive their request: handed over behind python-cgi.py, which has the imports.


class Handles:
    """Files with unwritten text that a module or another object keeps. Their text is written before
    the end of each request, so that it cannot reach the client of a later one.

    The collector knows all of them: an object that a request has made and that survives is in its two
    young generations, unless a collection in the middle of the request has moved it on."""

    KINDS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)

    def __init__(self):
        self.kept = []           # a weak reference to each, and its kind
        self.others = set()      # types that stay, and are no such files
        self.was_frozen = False
        # The first object that the collector knows of a request; as long as it is young, all are.
        self.first = None
        self.freeze = note_calls(gc, 'freeze', self.note_freeze)
        self.learn(gc.get_objects())

    def note_freeze(self):
        self.was_frozen = True    # a script hides its objects from the collector

    def collect(self, may_be_old):
        """Collects what the script has left, and notes the files among what is alive."""
        if self.was_frozen:
            gc.unfreeze()
            self.was_frozen, may_be_old = False, True
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

    def learn(self, objects):
        """Takes in the classes of modules, which need not be looked at again."""
        self.others.update(
            kind for kind in objects
            if issubclass(type(kind), type) and not issubclass(kind, self.KINDS))

    def note(self, objects):
        types = set(map(type, objects))
        if types <= self.others:
            return
        for kind in types - self.others:
            if issubclass(kind, self.KINDS):
                self.note_files(objects, kind)
            elif not kind.__flags__ & HEAP_TYPE:
                self.others.add(kind)

    def note_files(self, objects, kind):
        known = {id(reference()) for reference, _ in self.kept}
        base = next(base for base in self.KINDS if issubclass(kind, base))
        for file in objects:
            if type(file) is kind and id(file) not in known:
                self.kept.append((reference_to(file), base))

    def flush(self):
        """Writes what is left in files. False if that fails, as the text would be written later."""
        self.note(gc.get_objects(0))
        return not self.kept or self.flush_kept()

    def flush_kept(self):
        sound, alive = True, []
        for reference, base in self.kept:
            file = reference()
            try:
                # Of the interpreter's type: what a class of the script's does proves nothing.
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


def is_detached(file, base):
    """True if a file has given its buffer away, and so has no text."""
    try:
        base.closed.__get__(file)
        return False
    except ValueError:
        return True


def note_calls(module, name, note):
    """Has `note` called when a script calls the function of a module. The function itself."""
    function = getattr(module, name)

    def noted(*arguments):
        note()
        return function(*arguments)

    setattr(module, name, noted)
    return function
