#!/usr/bin/python3
import os
print('Content-Type: text/plain\n', flush=True)
os.execvp('echo', ['echo', 'from another program'])
