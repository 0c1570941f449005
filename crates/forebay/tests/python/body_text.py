#!/usr/bin/python3
import sys
print('Content-Type: text/plain\n')
if sys.stdin.readable():
    print(repr(sys.stdin.readline()))
    for line in sys.stdin:
        print(repr(line))
    print(repr(sys.stdin.read()))
