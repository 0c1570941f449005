#!/usr/bin/python3
OWN = 'of the directory'
