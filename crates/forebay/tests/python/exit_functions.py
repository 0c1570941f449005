#!/usr/bin/python3
import atexit
import sys
print('Content-Type: text/plain\n\nbefore')


@atexit.register
def last():
    print('registered first')
    atexit.register(print, 'registered at the end')


def never():
    print('never')


atexit.register(never)
atexit.register(print, 'registered last', end='!\n')
atexit.unregister(never)
atexit.register(sys.exit, 3)
sys.exit()
