#!/usr/bin/python3
print('Content-Type: text/plain\n\nbefore')
try:
    quit()
except SystemExit as error:
    print(error.code)
    raise
