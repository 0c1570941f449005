#!/usr/bin/python3
import sys
print('Content-Type: text/plain\n')
for number in range(20000):
    print(number, 'x' * 40)
sys.stdout.buffer.write(b'y' * 300000)
