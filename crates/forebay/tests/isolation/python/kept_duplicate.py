#!/usr/bin/python3
# A file over a duplicate of descriptor 1, kept with text in it.
import os
import keeper
print('Content-Type: text/plain\n\nbegun <%s>' % os.environ['QUERY_STRING'])
if not getattr(keeper, 'duplicate', None):
    keeper.duplicate = os.fdopen(os.dup(1), 'w')
keeper.duplicate.write('kept <%s>\n' % os.environ['QUERY_STRING'])
