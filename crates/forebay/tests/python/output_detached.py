#!/usr/bin/python3
import io
import sys
sys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='latin-1', newline='\r\n')
print('Content-Type: text/plain; charset=latin-1\n\n\xe9')
