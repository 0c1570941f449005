#!/usr/bin/python3
# A thread that the module `threading` does not know.
import _thread, os, time
nonce = os.environ['QUERY_STRING']
def late():
    time.sleep(0.05)
    os.write(1, b'late <%s>\n' % nonce.encode())
print('Content-Type: text/plain\n\nbegun <%s>' % nonce, flush=True)
_thread.start_new_thread(late, ())
