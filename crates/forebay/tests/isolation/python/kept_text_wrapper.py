#!/usr/bin/python3
# A second text layer over the same buffer, kept with text in it.
import io, os, sys
import keeper
print('Content-Type: text/plain\n\nbegun <%s>' % os.environ['QUERY_STRING'])
if not getattr(keeper, 'wrapper', None):
    keeper.wrapper = io.TextIOWrapper(sys.stdout.buffer)
keeper.wrapper.write('kept <%s>\n' % os.environ['QUERY_STRING'])
