#!/usr/bin/python3
import sys
print('Content-Type: text/plain\n\nbefore')
try:
    sys.exit(3)
finally:
    print('finally')
