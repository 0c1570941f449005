#!/usr/bin/python3
import codecs
import sys
sys.stdout = codecs.getwriter('latin-1')(sys.stdout.buffer)
print('Content-Type: text/plain\n\n\xe9')
sys.stdin = codecs.getreader('latin-1')(sys.stdin.buffer)
print(repr(sys.stdin.read()))
