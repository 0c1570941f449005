#!/usr/bin/python3
# Every millisecond, a new process takes over the client, so that a search may miss it.
import os, time
nonce = os.environ['QUERY_STRING']
print('Content-Type: text/plain\n\nbegun <%s>' % nonce, flush=True)
child = os.fork()
if child == 0:
    end = time.monotonic() + 0.06
    while time.monotonic() < end:
        if os.fork():
            os._exit(0)
        time.sleep(0.001)
    os.write(1, b'late <%s>\n' % nonce.encode())
    os._exit(0)
os.waitpid(child, 0)
