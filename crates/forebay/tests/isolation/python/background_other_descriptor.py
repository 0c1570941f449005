#!/usr/bin/python3
# The job has the client only as descriptor 9.
import os
print('Content-Type: text/plain\n\nbegun <%s>' % os.environ['QUERY_STRING'], flush=True)
os.system(r'''(sleep 0.05; printf 'late <%s>\n' "$QUERY_STRING" >&9) 9>&1 >/dev/null 2>&1 &''')
