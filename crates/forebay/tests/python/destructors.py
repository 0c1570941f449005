#!/usr/bin/python3
import gc


class Speaker:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        print('del', self.name)


print('Content-Type: text/plain\n')
plain, _private = Speaker('plain'), Speaker('private')
cycle = Speaker('in a cycle')
cycle.itself = cycle
plain = None
