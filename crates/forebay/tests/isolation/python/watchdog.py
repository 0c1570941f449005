#!/usr/bin/python3
# A watchdog of the interpreter (faulthandler), which writes from a C thread.
import faulthandler, os, sys
print('Content-Type: text/plain\n\nbegun <%s>' % os.environ['QUERY_STRING'], flush=True)
faulthandler.dump_traceback_later(0.05, file=sys.stdout)
