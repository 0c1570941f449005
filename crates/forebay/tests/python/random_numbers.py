#!/usr/bin/python3
import random
random.seed(7)
print('Content-Type: text/plain\n\n%r' % random.random())
