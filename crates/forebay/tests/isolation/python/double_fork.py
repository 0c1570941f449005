#!/usr/bin/python3
# The grandchild becomes an orphan, and writes later.
import os, time
nonce = os.environ['QUERY_STRING']
print('Content-Type: text/plain\n\nbegun <%s>' % nonce, flush=True)
child = os.fork()
if child == 0:
    if os.fork():
        os._exit(0)
    time.sleep(0.05)
    os.write(1, b'late <%s>\n' % nonce.encode())
    os._exit(0)
os.waitpid(child, 0)
