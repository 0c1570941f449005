#!/usr/bin/python3
# Has printed something when it is killed.
import os
print('Content-Type: text/plain\n\nbegun <%s>' % os.environ['QUERY_STRING'], flush=True)
os.kill(os.getpid(), 9)
