#!/usr/bin/python3
# The script hides its kept file from the collector.
import gc, os
import keeper
print('Content-Type: text/plain\n\nbegun <%s>' % os.environ['QUERY_STRING'])
keeper.frozen = os.fdopen(os.dup(1), 'w')
gc.collect()
gc.freeze()
keeper.frozen.write('kept <%s>\n' % os.environ['QUERY_STRING'])
