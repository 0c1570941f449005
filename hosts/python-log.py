# Messages about errors. Forebay appends this file to the hosts for Python.


def show(error, traceback):
    """Shows an exception as the program wants it. In place of the interpreter's own hook, writes its
    text as warnings."""
    if sys.excepthook is sys.__excepthook__:
        from traceback import format_exception
        log_error(''.join(format_exception(type(error), error, traceback)).rstrip('\n'))
    else:
        sys.excepthook(type(error), error, traceback)


def log_error(text):
    """Each line is a warning for Forebay, unlike what the program itself prints, unless the program
    has sent sys.stderr elsewhere."""
    level = '<4>' if sys.stderr is sys.__stderr__ else ''
    try:
        sys.stderr.write(''.join('%s%s\n' % (level, line) for line in str(text).split('\n')))
        sys.stderr.flush()
    except Exception:
        os.write(2, b'an error message could not be shown\n')
