#!/usr/bin/python3
import sys
sys.stdout.reconfigure(encoding='cp1252', newline='\r\n', line_buffering=True, errors='replace')
print('Content-Type: text/plain\n\n\u20ac \u0416')
