#!/usr/bin/python3
# Prints something, and then kills itself.
import os
print('Content-Type: text/plain\n\nbegun <%s>' % os.environ['QUERY_STRING'], flush=True)
os.kill(os.getpid(), 9)
