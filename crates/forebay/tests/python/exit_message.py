#!/usr/bin/python3
import sys
print('Content-Type: text/plain\n\nbefore')
sys.exit('a message for the log')
