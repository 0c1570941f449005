"""Tracebacks as pages for CGI scripts, for interpreters without this module (3.13 and later). The
names and arguments are those of Python's module up to 3.12."""
import inspect
import keyword
import linecache
import os
import pydoc
import sys
import tempfile
import time
import tokenize
import traceback
from html import escape as _escape

_UNKNOWN = object()


def enable(display=1, logdir=None, context=5, format='html'):
    """Shows each later uncaught exception as a page, and writes it to a file in `logdir`.
    `context`: lines of source around each place. `format`: "html", or else plain text."""
    sys.excepthook = Hook(display=display, logdir=logdir, context=context, format=format)


def handler(info=None):
    """Shows the current exception."""
    Hook().handle(info)


class Hook:
    """The replacement of sys.excepthook."""

    def __init__(self, display=1, logdir=None, context=5, file=None, format='html'):
        self.display, self.logdir, self.context = display, logdir, context
        self.file = file or sys.stdout
        self.format = format

    def __call__(self, etype, evalue, etb):
        self.handle((etype, evalue, etb))

    def handle(self, info=None):
        """Shows the exception `info`, or the current one."""
        info = info or sys.exc_info()
        is_html = self.format == 'html'
        if is_html:
            self.file.write(reset())
        try:
            report = (html if is_html else text)(info, self.context)
            plain = not is_html
        except Exception:    # the report itself may raise an exception
            report, plain = ''.join(traceback.format_exception(*info)), True
        if not self.display:
            self._say('A problem occurred in a Python script.', is_html)
        elif plain and is_html:
            self.file.write('<pre>%s</pre>\n' % _escape(report))
        else:
            self.file.write(report + '\n')
        if self.logdir is not None:
            self._log(report, '.txt' if plain else '.html', is_html)
        try:
            self.file.flush()
        except Exception:
            pass

    def _log(self, report, suffix, is_html):
        try:
            descriptor, path = tempfile.mkstemp(suffix=suffix, dir=self.logdir)
            with os.fdopen(descriptor, 'w') as file:
                file.write(report)
            self._say('%s contains the description of this error.' % path, is_html)
        except Exception:
            self._say('Tried to save a traceback in %s, but failed.' % self.logdir, is_html)

    def _say(self, sentence, is_html):
        self.file.write('<p>%s</p>\n' % _escape(sentence) if is_html else sentence + '\n')


def reset():
    """Returns the tags that close whatever the page has opened, so that the report is visible."""
    closing = 'table table table table table font font font blockquote center'.split()
    tags = ''.join('</%s>' % name for name in closing)
    return '<!--: spam\nContent-Type: text/html\n\n<body><font style="color: white; ' \
        'font-size: 1px"> -->\n<body><font style="color: white; font-size: 1px"> --> -->\n' \
        '</font> %s' % tags


def html(einfo, context=5):
    """Returns the exception as HTML."""
    etype, evalue, _ = einfo
    parts = [
        '<div style="background: #fff; color: #000; font: 15px/1.4 sans-serif; padding: 1em">',
        '<h1 style="background: #63c; color: #fff; padding: .3em">%s</h1>' % _escape(_name(etype)),
        '<p>%s<br>%s</p>' % tuple(_escape(line) for line in _where()),
        '<p>A problem occurred in a Python script. '
        'Here is the sequence of function calls leading up to the error.</p>',
    ]
    for file, line, call, lines, values in _frames(einfo, context):
        parts.append('<h2 style="background: #d8bbff; font-size: 1em">%s in <b>%s</b></h2><pre>'
                     % (_escape(file), _escape(call)))
        for number, source in lines:
            mark = '<b style="background: #fcf">=&gt;%5d %s</b>' if number == line else '  %5d %s'
            parts.append(mark % (number, _escape(source.rstrip('\n'))))
        parts.append('</pre><p style="color: #555">%s</p>' % ',<br>'.join(
            '<b>%s</b> = %s' % (_escape(name), _escape(value)) for name, value in values))
    parts.append('<p><b>%s</b>: %s</p>' % (_escape(_name(etype)), _escape(pydoc.text.repr(evalue)
                 if not str(evalue) else str(evalue))))
    for name, value in _attributes(evalue):
        parts.append('<br>%s = %s' % (_escape(name), _escape(value)))
    plain = ''.join(traceback.format_exception(*einfo))
    # For readers of the page's source. Two hyphens would end the comment.
    parts.append('</div>\n<!-- The above is a description of an error in a Python program, formatted\n'
                 'for a web browser. Here is the original traceback:\n\n%s\n-->\n'
                 % _escape(plain).replace('--', '- -'))
    return '\n'.join(parts)


def text(einfo, context=5):
    """Returns the exception as plain text."""
    etype, evalue, _ = einfo
    parts = [_name(etype), *_where(), '', 'A problem occurred in a Python script.  Here is the '
             'sequence of', 'function calls leading up to the error, in the order they occurred.']
    for file, line, call, lines, values in _frames(einfo, context):
        parts.append('\n %s in %s' % (file, call))
        parts.extend('%5d %s' % (number, source.rstrip('\n')) for number, source in lines)
        parts.append('\n'.join('%s = %s' % pair for pair in values))
    parts.append('%s: %s' % (_name(etype), evalue))
    parts.extend('    %s = %s' % pair for pair in _attributes(evalue))
    plain = ''.join(traceback.format_exception(*einfo))
    return '\n'.join(parts) + '\n\nThe above is a description of an error in a Python program.  ' \
        'Here is\nthe original traceback:\n\n%s\n' % plain


def _name(etype):
    return getattr(etype, '__name__', str(etype))


def _where():
    return 'Python %s: %s' % (sys.version.split()[0], sys.executable), time.ctime()


def _frames(einfo, context):
    """Yields for each frame: file, line, call, lines of source, names and values on that line."""
    for frame, file, line, function, _, _ in inspect.getinnerframes(einfo[2], context):
        file = os.path.abspath(file) if file else '?'
        call = function
        if function != '?' and function != '<module>':
            names, star, stars, values = inspect.getargvalues(frame)
            call += inspect.formatargvalues(
                names, star, stars, values, formatvalue=lambda value: '=' + _shown(value))
        first = max(1, line - context // 2)
        source = [(number, linecache.getline(file, number))
                  for number in range(first, first + context)]
        source = [(number, text) for number, text in source if text]
        yield file, line, call, source, list(_values(frame, file, line))


def _values(frame, file, line):
    """Returns the names on the line, with their values."""
    lines = iter([linecache.getline(file, line)])
    seen, owner, last, value = set(), '', '', _UNKNOWN
    try:
        for kind, token, _, _, _ in tokenize.generate_tokens(lambda: next(lines, '')):
            if kind == tokenize.NAME and token not in keyword.kwlist:
                if last == '.':
                    value = getattr(value, token, _UNKNOWN) if value is not _UNKNOWN else value
                    name = owner + token
                else:
                    name, value = token, lookup(token, frame, frame.f_locals)[1]
                if name not in seen:
                    seen.add(name)
                    yield name, 'undefined' if value is _UNKNOWN else _shown(value)
                owner = name
            elif token == '.':
                owner += '.'
            else:
                owner = ''
            last = token
    except (tokenize.TokenError, SyntaxError):
        return


def lookup(name, frame, locals):
    """Returns the scope of `name` and its value."""
    if name in locals:
        return 'local', locals[name]
    if name in frame.f_globals:
        return 'global', frame.f_globals[name]
    builtins = frame.f_globals.get('__builtins__', {})
    builtins = builtins if isinstance(builtins, dict) else vars(builtins)
    if name in builtins:
        return 'builtin', builtins[name]
    return None, _UNKNOWN


def _attributes(evalue):
    for name in dir(evalue):
        if name[:1] != '_':
            yield name, _shown(getattr(evalue, name, None))


def _shown(value):
    return pydoc.text.repr(value)
