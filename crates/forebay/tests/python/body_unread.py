#!/usr/bin/python3
print('Content-Type: text/plain\n\nnot read')
