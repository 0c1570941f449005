#!/usr/bin/python3
# The kept file has survived a garbage collection before the script ends.
import gc, os
import keeper
print('Content-Type: text/plain\n\nbegun <%s>' % os.environ['QUERY_STRING'])
keeper.old = os.fdopen(os.dup(1), 'w')
gc.collect()
keeper.old.write('kept <%s>\n' % os.environ['QUERY_STRING'])
