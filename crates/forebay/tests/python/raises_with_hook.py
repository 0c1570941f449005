#!/usr/bin/python3
import sys


def hook(kind, value, traceback):
    names = []
    while traceback:
        names.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    print(kind.__name__, value, names)


def fails():
    raise ValueError('caught by the hook')


print('Content-Type: text/plain\n')
sys.excepthook = hook
fails()
