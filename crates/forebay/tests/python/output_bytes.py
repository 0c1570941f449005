#!/usr/bin/python3
import sys
print('Content-Type: text/plain; charset=latin-1\n', flush=True)
print('held in the text layer')
sys.stdout.buffer.write(b'\xff\xfe past it\n')
print('\xe9 \udcff \u20ac', end='')
