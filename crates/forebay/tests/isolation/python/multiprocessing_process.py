#!/usr/bin/python3
# A daemon process of multiprocessing, which is a fork of this one.
import multiprocessing, os, time
nonce = os.environ['QUERY_STRING']
def late():
    time.sleep(0.05)
    os.write(1, b'late <%s>\n' % nonce.encode())
print('Content-Type: text/plain\n\nbegun <%s>' % nonce, flush=True)
multiprocessing.Process(target=late, daemon=True).start()
