#!/usr/bin/python3
# The C library has a buffer of its own for its standard output.
import ctypes, os
nonce = os.environ['QUERY_STRING']
print('Content-Type: text/plain\n\nbegun <%s>' % nonce, flush=True)
ctypes.CDLL(None).printf(b'kept <%s>\n' % nonce.encode())
