#!/usr/bin/python3
# Has printed nothing when it is killed, but for what is in the buffer.
import os, signal
print('Content-Type: text/plain\n\nbegun <%s>' % os.environ['QUERY_STRING'])
os.kill(os.getpid(), signal.SIGSEGV)
