#!/usr/bin/python3
print('Content-Type: text/plain\n')
try:
    while True:
        print('got', input())
except EOFError:
    print('end')
