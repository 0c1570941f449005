#!/usr/bin/python3
import atexit
atexit.register(print, 'at exit')
print('Content-Type: text/plain\nStatus: 404 Not Here\n\nbefore')
raise KeyError('nobody catches this')
