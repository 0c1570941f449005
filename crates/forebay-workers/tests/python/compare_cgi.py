"""Compares Forebay's cgi module with the interpreter's own, if there is one, over a table of
requests. Arguments: the file of Forebay's module. Prints each difference; exit code 77: nothing to
compare with."""
import importlib.util
import io
import random
import sys
import warnings

warnings.simplefilter('ignore')
try:
    import cgi as theirs
except ImportError:
    sys.exit(77)

spec = importlib.util.spec_from_file_location('ours', sys.argv[1])
ours = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ours)
compared = differences = 0


def same(what, *functions):
    """Notes a difference between the results, or the exceptions, of two functions."""
    global compared, differences
    results = []
    for function in functions:
        try:
            results.append(('result', repr(function())))
        except Exception as error:
            results.append(('raised', type(error).__name__, str(error)))
    compared += 1
    if results[0] != results[1]:
        differences += 1
        print('%s\n  theirs %r\n  ours   %r' % (what, *results))


def show(item):
    """Returns all values that a script may read."""
    if isinstance(item, list):
        return [show(one) for one in item]
    shown = [item.name, item.filename, item.value, item.type, item.type_options,
             item.disposition, item.disposition_options, repr(item)]
    if item.headers is not None:
        shown.append(sorted((k.lower(), v) for k, v in dict(item.headers).items()))
    if item.file is not None:
        shown.append(item.file.read())
    return shown


def form(module, environ, body, **options):
    stream = io.BytesIO(body)
    fields = module.FieldStorage(fp=stream, environ=dict(environ), **options)
    shown = [show(fields), fields.done, fields.length, stream.read()]
    if fields.list is not None:
        names = sorted(fields.keys(), key=str)
        shown += [names, len(fields), bool(fields), [show(item) for item in fields.list]]
        for name in names + ['absent']:
            shown += [name in fields, fields.getvalue(name), fields.getfirst(name, 'd'),
                      fields.getlist(name)]
            shown.append(show(fields[name]) if name in fields else None)
    else:
        for attempt in (lambda: fields['a'], lambda: bool(fields), lambda: len(fields)):
            try:
                shown.append(attempt())
            except TypeError as error:
                shown.append(str(error))
    return shown


def compare_form(environ, body=b'', **options):
    same('FieldStorage %r %r %r' % (environ, body[:300], options),
         *[lambda m=m: form(m, environ, body, **options) for m in (theirs, ours)])


def post(kind, body, length=None, **more):
    environ = {'REQUEST_METHOD': 'POST', 'CONTENT_TYPE': kind,
               'CONTENT_LENGTH': str(len(body) if length is None else length)}
    return dict(environ, **more), body


def multipart(*parts, boundary=b'----x', end=b'--\r\n', newline=b'\r\n'):
    body = b''
    for headers, value in parts:
        body += b'--' + boundary + newline + headers + newline * 2 + value + newline
    return body + b'--' + boundary + end


QUERIES = ['', 'a=1', 'a=1&a=2&b=3', 'a=&b', 'a=%C3%A9+%26&%20=x', 'a=%ff', 'a;b=1', 'a=1;b=2',
           '&&=', '=x', 'a=1&b=%', 'x' * 3000 + '=1', 'q=a%00b', '\udcff=1']
FIELD = b'Content-Disposition: form-data; name="%s"'
FILE = FIELD + b'; filename="%s"\r\nContent-Type: text/plain'
KIND = 'multipart/form-data; boundary=----x'


def compare_queries():
    for query in QUERIES:
        for method in ('GET', 'HEAD', 'get'):
            environ = {'REQUEST_METHOD': method, 'QUERY_STRING': query}
            compare_form(environ)
            compare_form(environ, keep_blank_values=True)
            compare_form(environ, strict_parsing=True)
            compare_form(environ, separator=';')
            compare_form(environ, max_num_fields=1)
            compare_form(environ, encoding='latin-1')
        if '\udcff' not in query:
            kind = 'application/x-www-form-urlencoded'
            compare_form(*post(kind, query.encode(), QUERY_STRING='a=9&z=1'))
            compare_form(*post(kind + '; charset=utf-8', query.encode()), keep_blank_values=True)
            compare_form(*post(kind, query.encode() + b'more', length=len(query)))
    compare_form({'REQUEST_METHOD': 'POST', 'CONTENT_LENGTH': '3'}, b'a=1')
    compare_form({'REQUEST_METHOD': 'POST', 'CONTENT_LENGTH': 'nonsense'}, b'a=1')
    compare_form({'REQUEST_METHOD': 'POST'}, b'a=1')
    compare_form({})


def compare_bodies():
    for body in (b'', b'{"a": 1}', b'line\nline\r\n', b'\xff\xfe' * 3000):
        for method in ('POST', 'PUT', 'DELETE'):
            for kind in ('application/json', 'text/plain', ''):
                environ, _ = post(kind, body, QUERY_STRING='a=1')
                compare_form(dict(environ, REQUEST_METHOD=method), body)
                del environ['CONTENT_LENGTH']
                compare_form(dict(environ, REQUEST_METHOD=method), body)


def compare_multipart():
    texts = [b'', b'v', b'two\r\nlines', b'ends with \r', b'--', b'--not', b'\r\n', b'\n', b'\xff',
             b'\r\n--', 'é'.encode(), b'x' * 999, b'x' * 1001, b'y' * 65535 + b'\r\nz',
             b'y' * 65536 + b'\r\n\r\n', b'-' * 70000, b'--ok' * 10000]
    for text in texts:
        for headers in (FIELD % b'a', FILE % (b'f', b'a.txt'), FILE % (b'f', b'')):
            compare_form(*post(KIND, multipart((headers, text))))
            compare_form(*post(KIND, multipart((headers, text), (FIELD % b'b', b'2')),
                               QUERY_STRING='a=9'))
            compare_form(*post(KIND, b'preamble\r\n' + multipart((headers, text), end=b'')))
            body = multipart((headers, text), newline=b'\n', end=b'--\n')
            compare_form(*post(KIND, body))
            compare_form(*post(KIND, body + b'epilogue'))
            compare_form(*post(KIND, multipart((headers, text))[:-9]))
    names = [b'plain', b'with \\"quotes\\"', b'semi;colon', b'back\\\\slash', 'é'.encode(),
             b'C:\\dir\\file', b'a=b', b'']
    for name in names:
        compare_form(*post(KIND, multipart((FILE % (name, name), b'v'))))
    odd = [b'Content-Disposition: form-data', b'X: y', FIELD % b'a' + b'\r\nContent-Length: 99',
           b'Content-Disposition: form-data; name=a', b'content-disposition: FORM-DATA; NAME=a',
           FIELD % b'a' + b'\r\nContent-Type: text/plain; charset=utf-16', b'no colon', b'']
    for headers in odd:
        compare_form(*post(KIND, multipart((headers, b'v'))))
    for boundary in ('', 'x' * 300, 'tail ', 'é', 'x' * 201, "a'()+_,-./:=?"):
        body = multipart((FIELD % b'a', b'v'), boundary=boundary.encode('utf-8'))
        compare_form(*post('multipart/form-data; boundary="%s"' % boundary, body))
    compare_form(*post('multipart/form-data', multipart((FIELD % b'a', b'v'))))
    many = multipart(*[(FIELD % b'a', b'%d' % n) for n in range(5)])
    for most in (4, 5, 6):
        compare_form(*post(KIND, many), max_num_fields=most)
    for length in (0, 10, 60, len(many) - 1, len(many) + 10):
        compare_form(*post(KIND, many, length=length))
    inner = multipart((b'Content-Disposition: file; filename="a"', b'1'), boundary=b'in')
    nested = b'Content-Disposition: form-data; name="n"\r\nContent-Type: multipart/mixed; boundary=in'
    # The interpreter's module loses the text after a nested part.
    compare_form(*post(KIND, multipart((nested, inner))))
    compare_form(*post(KIND, multipart((FIELD % b'a\r\nContent-Type: application/x-www-form-urlencoded',
                                        b'b=1'))))


def compare_random():
    pieces = [b'\r', b'\n', b'\r\n', b'-', b'--', b'----x', b'------x', b'------x--', b'a', b'\xc3',
              FIELD % b'a', FIELD % b'b' + b'; filename=f', b': ', b';', b'x' * 500, b'&', b'=']
    chance = random.Random(11)
    for _ in range(3000):
        body = b''.join(chance.choice(pieces) for _ in range(chance.randrange(30)))
        compare_form(*post(KIND, b'------x\r\n' + body))


def compare_functions():
    lines = ['', 'text/html', 'text/html; charset=utf-8', 'a; B="c;d"; e=f', 'a; b="c\\"d;e"; f',
             'a;b', ';', 'a; =x', 'a; b=" x "', 'a; b="unended', 'a;b=c;b=d', 'a; b="\\\\"', '"a;b";c=d',
             'form-data; name="x\\\\"; filename="y"', 'a;;b=1', 'a; b = c ', 'a; b="x"y; c=d']
    for line in lines:
        same('parse_header %r' % line, *[lambda m=m: m.parse_header(line) for m in (theirs, ours)])
    for query in QUERIES:
        for extra in ({}, {'keep_blank_values': 1}, {'separator': ';'}):
            environ = {'QUERY_STRING': query}
            same('parse %r' % query, *[
                lambda m=m: m.parse(io.BytesIO(), dict(environ), **extra) for m in (theirs, ours)])
    # The interpreter's module cannot parse() a multipart body.
    for kind, body in ('application/x-www-form-urlencoded', b'a=1&a=2'), ('text/plain', b'a=1'):
        environ = post(kind, body, QUERY_STRING='q=1')[0]
        same('parse %r' % body, *[
            lambda m=m: m.parse(io.BytesIO(body), dict(environ)) for m in (theirs, ours)])
    body = multipart((FIELD % b'a', b'v'), (FIELD % b'a', b'w'), (FILE % (b'f', b'n'), b'\xff'))
    options = {'boundary': b'----x', 'CONTENT-LENGTH': str(len(body))}
    same('parse_multipart', *[
        lambda m=m: sorted(m.parse_multipart(io.BytesIO(body), dict(options)).items())
        for m in (theirs, ours)])
    same('MiniFieldStorage', *[lambda m=m: show(m.MiniFieldStorage('a', 'b')) for m in (theirs, ours)])
    for limit in (1, 7, 8):
        theirs.maxlen = ours.maxlen = limit
        compare_form(*post('application/x-www-form-urlencoded', b'a=1&b=2'))
        compare_form(*post(KIND, multipart((FIELD % b'a', b'v'))))
    theirs.maxlen = ours.maxlen = 0
    same('names', lambda: set(theirs.__all__), lambda: set(ours.__all__))


compare_queries()
compare_bodies()
compare_multipart()
compare_random()
compare_functions()
print('%d compared, %d differ' % (compared, differences))
sys.exit(differences != 0)
