#!/usr/bin/python3
import os
import subprocess
print('Content-Type: text/plain\n', flush=True)
os.environ['OWN'] = 'set by the script'
subprocess.run('echo "$OWN $QUERY_STRING $GATEWAY_INTERFACE"; pwd | sed "s,.*/,,"; cat',
               shell=True, check=True)
