#!/usr/bin/python3
import os
import sys
print('Content-Type: text/plain\n', flush=True)
child = os.fork()
if child == 0:
    print('the child')
    sys.exit(0)
os.waitpid(child, 0)
print('the parent')
