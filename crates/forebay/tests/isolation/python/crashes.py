#!/usr/bin/python3
# Kills itself while its output is still in the buffer.
import os, signal
print('Content-Type: text/plain\n\nbegun <%s>' % os.environ['QUERY_STRING'])
os.kill(os.getpid(), signal.SIGSEGV)
