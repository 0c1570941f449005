#!/usr/bin/python3
import sibling
print('Content-Type: text/plain\n')
print(sibling.where(), __name__, sibling.__name__)
