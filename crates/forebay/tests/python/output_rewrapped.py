#!/usr/bin/python3
import io
import sys
sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-16-le')
sys.stdout.write('ignored'[:0])
sys.stdout.buffer.write(b'Content-Type: text/plain\n\n')
print('wide')
