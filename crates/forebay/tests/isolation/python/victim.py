#!/usr/bin/python3
# Prints what it was asked for, and nothing else.
import os
print('Content-Type: text/plain\n\nvictim <%s>' % os.environ['QUERY_STRING'])
