#!/usr/bin/python3
# Leaves descriptors open in the worker.
import os
print('Content-Type: text/plain\n\nbegun <%s>' % os.environ['QUERY_STRING'])
for _ in range(40):
    os.dup(1)
