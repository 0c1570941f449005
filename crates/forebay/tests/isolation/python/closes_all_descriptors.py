#!/usr/bin/python3
# Closes all descriptors, and opens other files at the same numbers, which a module keeps.
import os
import keeper
print('Content-Type: text/plain\n\nbegun <%s>' % os.environ['QUERY_STRING'], flush=True)
os.closerange(3, 256)
for _ in range(20):
    os.open('/dev/null', os.O_RDWR)
