#!/usr/bin/python3
import os
import subprocess
print('Content-Type: text/plain\n', flush=True)
subprocess.Popen(['sleep', '1000'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print('a child that does not hold the output is left')
