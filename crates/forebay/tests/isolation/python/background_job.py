#!/usr/bin/python3
# The shell ends at once, and its job writes a header field and a line later.
import os
print('Content-Type: text/plain\n\nbegun <%s>' % os.environ['QUERY_STRING'], flush=True)
os.system(r'''(sleep 0.1; printf 'Set-Cookie: s=<%s>\r\n\r\n' "$QUERY_STRING") &''')
