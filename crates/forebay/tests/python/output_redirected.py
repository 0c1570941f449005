#!/usr/bin/python3
import os
import sys
print('Content-Type: text/plain\n\nthen redirected', flush=True)
os.dup2(os.open('/dev/null', os.O_WRONLY), 1)
print('lost')
os.system('echo lost')
