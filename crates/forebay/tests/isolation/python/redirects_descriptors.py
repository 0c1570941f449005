#!/usr/bin/python3
# Redirects its output in the middle of the reply.
import os
print('Content-Type: text/plain\n\nbegun <%s>' % os.environ['QUERY_STRING'], flush=True)
os.dup2(os.open('/dev/null', os.O_WRONLY), 1)
print('nowhere <%s>' % os.environ['QUERY_STRING'])
