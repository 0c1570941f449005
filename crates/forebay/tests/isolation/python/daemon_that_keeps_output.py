#!/usr/bin/python3
# A daemon in its own session that has not closed its output, with text in its buffer.
import os, sys, time
nonce = os.environ['QUERY_STRING']
print('Content-Type: text/plain\n\nbegun <%s>' % nonce, flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    time.sleep(0.1)
    print('late <%s>' % nonce)
    sys.exit()
os.wait()
