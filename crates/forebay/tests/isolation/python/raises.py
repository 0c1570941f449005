#!/usr/bin/python3
# Ends by an exception with text in its buffer.
import os
print('Content-Type: text/plain\n\nbegun <%s>' % os.environ['QUERY_STRING'])
raise ValueError('for a reason')
