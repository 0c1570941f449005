#!/usr/bin/python3
# A daemon thread writes when its request is over.
import os, threading, time
nonce = os.environ['QUERY_STRING']
def late():
    time.sleep(0.05)
    os.write(1, b'late <%s>\n' % nonce.encode())
print('Content-Type: text/plain\n\nbegun <%s>' % nonce, flush=True)
threading.Thread(target=late, daemon=True).start()
