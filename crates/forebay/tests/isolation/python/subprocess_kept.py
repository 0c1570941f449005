#!/usr/bin/python3
# A module keeps a child process that still writes.
import os, subprocess
import keeper
print('Content-Type: text/plain\n\nbegun <%s>' % os.environ['QUERY_STRING'], flush=True)
keeper.kept.append(subprocess.Popen(['sh', '-c', r'sleep 0.1; printf "late <%s>\n" "$QUERY_STRING"']))
