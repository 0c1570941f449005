#!/usr/bin/python3
import colorsys    # the one beside this script, not Python's
print('Content-Type: text/plain\n\n' + colorsys.OWN)
