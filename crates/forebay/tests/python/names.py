#!/usr/bin/python3
"""What a script finds when it starts."""
first = sorted(globals())
import os
import sys
print('Content-Type: text/plain\nX-Own: yes\n')
print(first, __name__, os.path.basename(__file__), __doc__, __package__, __spec__, __cached__)
print(type(__loader__).__name__, type(__builtins__).__name__)
print([os.path.basename(arg) for arg in sys.argv], os.path.basename(os.getcwd()))
print(os.path.basename(sys.path[0]), len(sys.path))
for name in ('GATEWAY_INTERFACE', 'REQUEST_METHOD', 'QUERY_STRING', 'CONTENT_LENGTH',
             'CONTENT_TYPE', 'HTTP_HOST', 'HTTP_X_THING', 'LC_CTYPE', 'LANG', 'HOME'):
    print(name, os.environ.get(name))
for stream in (sys.stdin, sys.stdout, sys.stderr, sys.__stdout__):
    print(stream.name, stream.mode, stream.encoding, stream.errors, stream.line_buffering,
          stream.write_through, stream.closed, type(stream).__name__, type(stream.buffer).__name__)
import __main__
print(__main__.first == first, sys.modules['__main__'] is __main__)
os.environ['HTTP_X_THING'] = os.environ['LEFT'] = 'left behind'
