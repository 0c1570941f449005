#!/usr/bin/python3
# Files of the io module that is written in Python.
import _pyio, os
import keeper
nonce = os.environ['QUERY_STRING']
print('Content-Type: text/plain\n\nbegun <%s>' % nonce, flush=True)
keeper.written_in_python = _pyio.open(os.dup(1), 'w')
keeper.written_in_python.write('kept <%s>\n' % nonce)
