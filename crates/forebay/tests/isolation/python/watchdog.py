#!/usr/bin/python3
# A watchdog of the interpreter's, which writes from a thread without Python.
import faulthandler, os, sys
print('Content-Type: text/plain\n\nbegun <%s>' % os.environ['QUERY_STRING'], flush=True)
faulthandler.dump_traceback_later(0.05, file=sys.stdout)
