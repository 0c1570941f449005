#!/usr/bin/python3
"""Prints the time: what is left to measure when a script does next to nothing."""
import time

print('Content-Type: text/plain\n')
print('The time is', time.ctime())
