#!/usr/bin/python3
print('Location: http://example.org/there\nX-Own: yes\n')
