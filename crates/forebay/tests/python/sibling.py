#!/usr/bin/python3
import os


def where():
    return os.path.basename(os.path.dirname(__file__))
