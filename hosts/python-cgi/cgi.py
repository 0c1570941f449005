"""Form data for CGI scripts, for interpreters without this module (3.13 and later). The names,
arguments and results are those of Python's module up to 3.12."""
import os
import sys
import tempfile
from email.parser import FeedParser
from html import escape as _escape
from io import BytesIO, StringIO, TextIOWrapper
from urllib.parse import parse_qsl as _parse_qsl

__version__ = '2.6'
__all__ = [
    'MiniFieldStorage', 'FieldStorage', 'parse', 'parse_multipart', 'parse_header', 'test',
    'print_exception', 'print_environ', 'print_form', 'print_directory', 'print_arguments',
    'print_environ_usage',
]

# Largest body in bytes; 0: no limit. Scripts set this.
maxlen = 0

_LONGEST_LINE = 1 << 16
_KEPT_IN_MEMORY = 1000    # bytes of a part's value
_URLENCODED = 'application/x-www-form-urlencoded'


# ---- forms ----


class MiniFieldStorage:
    """A field of a query string or of an urlencoded form."""

    filename = list = type = file = disposition = None

    def __init__(self, name, value):
        self.name, self.value = name, value
        self.type_options, self.disposition_options, self.headers = {}, {}, {}

    def __repr__(self):
        return 'MiniFieldStorage(%r, %r)' % (self.name, self.value)


class FieldStorage:
    """A whole form, as a dictionary of fields; or one part of a multipart body."""

    bufsize = 8 * 1024
    FieldStorageClass = None

    def __init__(self, fp=None, headers=None, outerboundary=b'', environ=os.environ,
                 keep_blank_values=0, strict_parsing=0, limit=None, encoding='utf-8',
                 errors='replace', max_num_fields=None, separator='&'):
        self.keep_blank_values, self.strict_parsing = keep_blank_values, strict_parsing
        self.max_num_fields, self.separator = max_num_fields, separator
        self.encoding, self.errors = encoding, errors
        self.qs_on_post = None
        method = environ['REQUEST_METHOD'].upper() if 'REQUEST_METHOD' in environ else 'GET'
        if method in ('GET', 'HEAD'):
            fp, headers = self._query(environ), headers or {'content-type': _URLENCODED}
        elif headers is None:
            headers = self._headers_of(method, environ)
        self.fp = _binary(fp)
        self.headers = headers
        if not isinstance(outerboundary, bytes):
            raise TypeError('outerboundary must be bytes, not %s' % type(outerboundary).__name__)
        self.outerboundary = outerboundary
        self.bytes_read, self.limit = 0, limit
        self.list = self.file = None
        self.done = 0
        self._read_headers(method)
        self._read()

    def _query(self, environ):
        if 'QUERY_STRING' in environ:
            query = environ['QUERY_STRING']
        else:
            query = sys.argv[1] if sys.argv[1:] else ''
        return BytesIO(query.encode(sys.getfilesystemencoding(), 'surrogateescape'))

    def _headers_of(self, method, environ):
        headers = {'content-type': _URLENCODED} if method == 'POST' else {}
        if 'CONTENT_TYPE' in environ:
            headers['content-type'] = environ['CONTENT_TYPE']
        if 'QUERY_STRING' in environ:
            self.qs_on_post = environ['QUERY_STRING']
        if 'CONTENT_LENGTH' in environ:
            headers['content-length'] = environ['CONTENT_LENGTH']
        return headers

    def _read_headers(self, method):
        disposition, options = '', {}
        if 'content-disposition' in self.headers:
            disposition, options = parse_header(self.headers['content-disposition'])
        self.disposition, self.disposition_options = disposition, options
        self.name, self.filename = options.get('name'), options.get('filename')
        self._binary_file = self.filename is not None
        if 'content-type' in self.headers:
            kind, options = parse_header(self.headers['content-type'])
        elif self.outerboundary or method != 'POST':
            kind, options = 'text/plain', {}
        else:
            kind, options = _URLENCODED, {}
        self.type, self.type_options = kind, options
        self.innerboundary = options.get('boundary', '').encode(self.encoding, self.errors)
        self.length = -1
        try:
            self.length = int(self.headers.get('content-length', -1))
        except ValueError:
            pass
        if maxlen and self.length > maxlen:
            raise ValueError('Maximum content length exceeded')
        if self.limit is None and self.length >= 0:
            self.limit = self.length

    def _read(self):
        if self.type == _URLENCODED:
            self.read_urlencoded()
        elif self.type[:10] == 'multipart/':
            self.read_multi(self.environ_for_parts, self.keep_blank_values, self.strict_parsing)
        else:
            self.read_single()

    environ_for_parts = {'REQUEST_METHOD': 'POST'}

    def read_urlencoded(self):
        """Fields of an urlencoded body, then those of the query string."""
        body = self.fp.read(self.length)
        if not isinstance(body, bytes):
            raise ValueError('%s should return bytes, got %s' % (self.fp, type(body).__name__))
        text = body.decode(self.encoding, self.errors)
        if self.qs_on_post:
            text += '&' + self.qs_on_post
        self.list = self._fields(text)
        self.skip_lines()

    def _fields(self, text):
        pairs = _parse_qsl(
            text, self.keep_blank_values, self.strict_parsing, encoding=self.encoding,
            errors=self.errors, max_num_fields=self.max_num_fields, separator=self.separator)
        return [MiniFieldStorage(name, value) for name, value in pairs]

    def read_multi(self, environ, keep_blank_values, strict_parsing):
        """The parts of a multipart body."""
        boundary = self.innerboundary
        if not valid_boundary(boundary):
            raise ValueError('Invalid boundary in multipart form: %r' % (boundary,))
        self.list = self._fields(self.qs_on_post) if self.qs_on_post else []
        line = None
        while line is None or line and line.strip() != b'--' + boundary:
            line = self._line_of(self.fp, -1)
        left = self.max_num_fields
        left = None if left is None else left - len(self.list)
        while True:
            headers, size = self._part_headers()
            self.bytes_read += size
            if not size:
                break
            limit = None if self.limit is None else self.limit - self.bytes_read
            part = (self.FieldStorageClass or self.__class__)(
                self.fp, headers, boundary, environ, keep_blank_values, strict_parsing, limit,
                self.encoding, self.errors, left, self.separator)
            if left is not None:
                left -= 1 + len(part.list or ())
                if left < 0:
                    raise ValueError('Max number of fields exceeded')
            self.bytes_read += part.bytes_read
            self.list.append(part)
            if part.done or self.bytes_read >= self.length > 0:
                break
        self.skip_lines()

    def _part_headers(self):
        """The header fields of the next part, and how many bytes they have."""
        parser, size, line = FeedParser(), 0, None
        while line is None or line.strip():
            line = self.fp.readline()
            size += len(line)
            parser.feed(line.decode(self.encoding, self.errors))
        headers = parser.close()
        if 'content-length' in headers:
            del headers['content-length']    # some clients send one for parts; it is not needed
        return headers, size

    def read_single(self):
        """A body, or a part, that is a value by itself."""
        if self.length >= 0:
            self.read_binary()
            self.skip_lines()
        else:
            self.read_lines()
        self.file.seek(0)

    def read_binary(self):
        """Reads the number of bytes that the length says."""
        self.file = self.make_file()
        left = self.length
        while left > 0:
            data = self.fp.read(min(left, self.bufsize))
            if not isinstance(data, bytes):
                raise ValueError('%s should return bytes, got %s' % (self.fp, type(data).__name__))
            self.bytes_read += len(data)
            if not data:
                self.done = -1
                break
            self.file.write(data)
            left -= len(data)

    def read_lines(self):
        """Reads up to the boundary, or to the end if there is none."""
        self.file = self._memory = BytesIO() if self._binary_file else StringIO()
        for piece in self._pieces():
            self._store(piece)

    def _store(self, piece):
        if self._memory is not None and self._memory.tell() + len(piece) > _KEPT_IN_MEMORY:
            self.file = self.make_file()
            self.file.write(self._memory.getvalue())
            self._memory = None
        self.file.write(piece if self._binary_file else piece.decode(self.encoding, self.errors))

    def _pieces(self):
        """Yields the lines of the value. The line break before a boundary belongs to the
        boundary."""
        ends = b'--' + self.outerboundary, b'--' + self.outerboundary + b'--'
        held, starts_line, read = b'', True, 0
        while self.limit is None or self.limit < 0 or read < self.limit:
            line = self._line_of(self.fp, _LONGEST_LINE)
            read += len(line)
            if not line:
                self.done = -1
                break
            if self.outerboundary and starts_line and line[:2] == b'--' and line.rstrip() in ends:
                self.done = int(line.rstrip() == ends[1])
                return
            line, held = held + line, b''
            starts_line = line.endswith(b'\n')
            if self.outerboundary:
                held = _line_break(line)
                line = line[:len(line) - len(held)]
            yield line

    def _line_of(self, file, size):
        line = file.readline(size)
        if not isinstance(line, bytes):
            raise ValueError('%s should return bytes, got %s' % (file, type(line).__name__))
        self.bytes_read += len(line)
        return line

    def skip_lines(self):
        """Reads the rest, up to the boundary of the body that contains this part."""
        if not self.outerboundary or self.done:
            return
        for _ in self._pieces():
            pass

    def make_file(self):
        """Returns a temporary file for a long value. A subclass may override this to store uploads
        elsewhere."""
        if self._binary_file:
            return tempfile.TemporaryFile('wb+')
        return tempfile.TemporaryFile('w+', encoding=self.encoding, newline='\n')

    # ---- as a dictionary ----

    def __getattr__(self, name):
        if name != 'value':
            raise AttributeError(name)
        if self.file:
            self.file.seek(0)
            value = self.file.read()
            self.file.seek(0)
            return value
        return self.list

    def _found(self, key):
        if self.list is None:
            raise TypeError('not indexable')
        return [item for item in self.list if item.name == key]

    def __getitem__(self, key):
        found = self._found(key)
        if not found:
            raise KeyError(key)
        return found[0] if len(found) == 1 else found

    def getvalue(self, key, default=None):
        """The value, or the list of values of fields with the same name."""
        found = [item.value for item in self._found(key)]
        return (found[0] if len(found) == 1 else found) if found else default

    def getfirst(self, key, default=None):
        """The first value."""
        found = self._found(key)
        return found[0].value if found else default

    def getlist(self, key):
        """All values."""
        return [item.value for item in self._found(key)]

    def keys(self):
        """The names of the fields, each once."""
        if self.list is None:
            raise TypeError('not indexable')
        return list({item.name for item in self.list})

    def __contains__(self, key):
        return bool(self._found(key))

    def __iter__(self):
        return iter(self.keys())

    def __len__(self):
        return len(self.keys())

    def __bool__(self):
        if self.list is None:
            raise TypeError('Cannot be converted to bool.')
        return bool(self.list)

    def __repr__(self):
        return 'FieldStorage(%r, %r, %r)' % (self.name, self.filename, self.value)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def __del__(self):
        try:
            self.file.close()
        except AttributeError:
            pass


def _binary(file):
    if file is None:
        return sys.stdin.buffer
    if isinstance(file, TextIOWrapper):
        return file.buffer
    if not (hasattr(file, 'read') and hasattr(file, 'readline')):
        raise TypeError('fp must be file pointer')
    return file


def _line_break(line):
    return next((end for end in (b'\r\n', b'\n', b'\r') if line.endswith(end)), b'')


def valid_boundary(boundary):
    """Returns true if the boundary is at most 201 printable ASCII characters and does not end with
    a space."""
    if isinstance(boundary, str):
        boundary = boundary.encode('latin-1', 'replace')
    return 0 < len(boundary) <= 201 and all(32 <= byte < 127 for byte in boundary) \
        and boundary[-1:] != b' '


# ---- parsing ----


def parse_header(line):
    """Splits the value of a header field: the text before the first semicolon, and a dictionary of
    the parameters."""
    value, *parameters = _split(line)
    options = {}
    for parameter in parameters:
        name, equals, text = parameter.partition('=')
        if not equals:
            continue
        text = text.strip()
        if len(text) >= 2 and text[0] == text[-1] == '"':
            text = text[1:-1].replace('\\\\', '\\').replace('\\"', '"')
        options[name.strip().lower()] = text
    return value, options


def _split(line):
    """Splits at semicolons, except in quotes."""
    pieces, start, quoted, at = [], 0, False, 0
    while at < len(line):
        if line[at] == '\\' and quoted and line[at + 1:at + 2] == '"':
            at += 1
        elif line[at] == '"':
            quoted = not quoted
        elif line[at] == ';' and not quoted:
            pieces.append(line[start:at].strip())
            start = at + 1
        at += 1
    return pieces + [line[start:].strip()]


def parse(fp=None, environ=os.environ, keep_blank_values=0, strict_parsing=0, separator='&'):
    """Returns the fields of a request as a dictionary of lists."""
    fp = sys.stdin if fp is None else fp
    encoding = getattr(fp, 'encoding', None) or 'latin-1'
    fp = _binary(fp)
    environ.setdefault('REQUEST_METHOD', 'GET')
    if environ['REQUEST_METHOD'] == 'POST':
        kind, options = parse_header(environ['CONTENT_TYPE'])
        if kind == 'multipart/form-data':
            return parse_multipart(fp, options, separator=separator)
        text = ''
        if kind == _URLENCODED:
            length = int(environ['CONTENT_LENGTH'])
            if maxlen and length > maxlen:
                raise ValueError('Maximum content length exceeded')
            text = fp.read(length).decode(encoding)
        query = environ.get('QUERY_STRING') or (sys.argv[1] if sys.argv[1:] else '')
        text += ('&' if text and query else '') + query
    elif 'QUERY_STRING' in environ:
        text = environ['QUERY_STRING']
    else:
        text = environ['QUERY_STRING'] = sys.argv[1] if sys.argv[1:] else ''
    fields = {}
    for name, value in _parse_qsl(text, keep_blank_values, strict_parsing, encoding=encoding,
                                  separator=separator):
        fields.setdefault(name, []).append(value)
    return fields


def parse_multipart(fp, pdict, encoding='utf-8', errors='replace', separator='&'):
    """Returns the fields of a multipart body as a dictionary of lists. `pdict`: the parameters of
    the content type."""
    boundary = pdict['boundary']
    boundary = boundary if isinstance(boundary, str) else boundary.decode('ascii')
    headers = {'content-type': 'multipart/form-data; boundary=' + boundary}
    if 'CONTENT-LENGTH' in pdict:
        headers['content-length'] = pdict['CONTENT-LENGTH']
    form = FieldStorage(fp, headers=headers, encoding=encoding, errors=errors,
                        environ={'REQUEST_METHOD': 'POST'}, separator=separator)
    return {name: form.getlist(name) for name in form}


# ---- a log, if the script names a file for it ----

logfile = ''
logfp = None


def initlog(*allargs):
    """Opens `logfile` on the first call, and writes a line."""
    global log, logfp
    if logfile and not logfp:
        try:
            logfp = open(logfile, 'a', encoding='locale')
        except OSError:
            pass
    log = dolog if logfp else nolog
    log(*allargs)


def dolog(fmt, *args):
    """Writes a line."""
    logfp.write(fmt % args + '\n')


def nolog(*allargs):
    """Writes nothing."""


def closelog():
    """Closes the log. A script that sets `logfile` again reopens it."""
    global log, logfile, logfp
    logfile = ''
    if logfp:
        logfp.close()
        logfp = None
    log = initlog


log = initlog


# ---- for debugging ----


def test(environ=os.environ):
    """Answers a request with all information about it."""
    print('Content-type: text/html\n')
    sys.stderr = sys.stdout
    try:
        form = FieldStorage()
        print_directory()
        print_arguments()
        print_form(form)
        print_environ(environ)
        print_environ_usage()
    except Exception:
        print_exception()


def print_exception(type=None, value=None, tb=None, limit=None):
    """Prints the current exception as HTML."""
    import traceback
    if type is None:
        type, value, tb = sys.exc_info()
    lines = traceback.format_tb(tb, limit) + traceback.format_exception_only(type, value)
    print('\n<h3>Traceback (most recent call last):</h3>')
    print('<pre>%s<b>%s</b></pre>' % (_escape(''.join(lines[:-1])), _escape(lines[-1])))


def print_environ(environ=os.environ):
    """The environment as HTML."""
    _print_table('Shell Environment:', ((name, environ[name]) for name in sorted(environ)))


def print_form(form):
    """The fields of a form as HTML."""
    fields = sorted(form.keys())
    if not fields:
        print('\n<h3>Form Contents:</h3>\n<p>No form fields.')
        return
    _print_table('Form Contents:', ((name, repr(form[name])) for name in fields))


def _print_table(title, rows):
    print('\n<h3>%s</h3>\n<dl>' % title)
    for name, value in rows:
        print('<dt>%s</dt><dd>%s</dd>' % (_escape(name), _escape(value)))
    print('</dl>\n')


def print_directory():
    """The current directory as HTML."""
    print('\n<h3>Current Working Directory:</h3>')
    try:
        print(_escape(os.getcwd()))
    except OSError as error:
        print('OSError:', _escape(str(error)))
    print()


def print_arguments():
    """The arguments of the script as HTML."""
    print('\n<h3>Command Line Arguments:</h3>\n\n%s\n' % _escape(repr(sys.argv)))


def print_environ_usage():
    """The names that a CGI script may find in its environment, as HTML."""
    names = 'AUTH_TYPE CONTENT_LENGTH CONTENT_TYPE DOCUMENT_ROOT GATEWAY_INTERFACE PATH_INFO ' \
        'PATH_TRANSLATED QUERY_STRING REMOTE_ADDR REMOTE_HOST REMOTE_IDENT REMOTE_USER ' \
        'REQUEST_METHOD SCRIPT_NAME SERVER_NAME SERVER_PORT SERVER_PROTOCOL SERVER_SOFTWARE'
    print('\n<h3>Variables of a CGI script:</h3>\n<ul>')
    for name in names.split():
        print('<li>' + name)
    print('</ul>\nHeader fields of the request as well: HTTP_ACCEPT, HTTP_HOST, HTTP_USER_AGENT ...')
