#!/usr/bin/python3
# Exit functions and destructors print, too.
import atexit, os
nonce = os.environ['QUERY_STRING']
class Last:
    def __del__(self):
        os.write(1, b'destroyed <%s>\n' % nonce.encode())
last = Last()
last.itself = last
print('Content-Type: text/plain\n\nbegun <%s>' % nonce, flush=True)
atexit.register(print, 'end <%s>' % nonce)
