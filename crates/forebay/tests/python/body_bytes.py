#!/usr/bin/python3
import os
import sys
sys.stdout.buffer.write(b'Content-Type: application/octet-stream\n\n')
sys.stdout.buffer.write(sys.stdin.buffer.read(3))
sys.stdout.buffer.write(b'|' + os.read(0, 10) + b'|' + sys.stdin.buffer.read())
