#!/usr/bin/python3
"""Prints the time: a script with almost no work, so the cost of the server remains."""
import time

print('Content-Type: text/plain\n')
print('The time is', time.ctime())
