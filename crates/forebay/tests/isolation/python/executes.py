#!/usr/bin/python3
# Another program replaces the script's process (exec).
import os
os.execvp('sh', ['sh', '-c', r'printf "Content-Type: text/plain\n\nexecuted <%s>\n" "$QUERY_STRING"'])
