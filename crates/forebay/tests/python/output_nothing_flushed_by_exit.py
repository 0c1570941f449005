#!/usr/bin/python3
import os
print('Content-Type: text/plain\n\nflushed', flush=True)
print('not flushed')
os._exit(0)
