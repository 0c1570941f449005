#!/usr/bin/python3
# -*- coding: latin-1 -*-
import sys
print("Content-Type: text/plain\n\n" + ascii("é"))
