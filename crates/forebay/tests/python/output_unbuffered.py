#!/usr/bin/python3 -u
import os
import sys
print('Content-Type: text/plain\n')
print(type(sys.stdout.buffer).__name__, sys.stdout.write_through)
print('before the child')
os.system('echo child')
