#!/usr/bin/python3
import os
import subprocess
import sys
print('Content-Type: text/plain\n', flush=True)
print('buffered, so after the child', flush=False)
os.system('echo child of system')
print(subprocess.check_output(['echo', 'captured']).decode(), end='')
sys.stdout.flush()
subprocess.run(['sh', '-c', 'echo child of run; echo more'], check=True)
os.write(1, b'written directly\n')
print('last', end='')
