#!/usr/bin/python3
# Prints its own number, and nothing else.
import os
print('Content-Type: text/plain\n\nvictim <%s>' % os.environ['QUERY_STRING'])
