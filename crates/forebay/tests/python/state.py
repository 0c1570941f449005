#!/usr/bin/python3
"""Prints state that is fresh in a new process, and then changes all of it."""
import asyncio
import builtins
import decimal
import gc
import locale
import logging
import os
import signal
import socket
import sys
import threading
import time
import warnings

print('Content-Type: text/plain\n')
mask = os.umask(0)
print(oct(mask), os.path.basename(os.getcwd()), sorted(os.environ.keys() & {'LEFT', 'TZ'}), time.tzname)
print([signal.getsignal(n) for n in (signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE, signal.SIGALRM)])
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getitimer(signal.ITIMER_REAL))
print(locale.setlocale(locale.LC_ALL), decimal.getcontext().prec, socket.getdefaulttimeout())
print(sys.getrecursionlimit(), sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__)
print(logging.root.level, logging.root.handlers, logging.getLogger('own').handlers)
print(len(warnings.filters), warnings.showwarning.__module__, gc.isenabled(), sys.gettrace())
print(threading.excepthook.__module__, len.__module__, sys.argv[1:], sys.dont_write_bytecode)
print(threading.active_count(), asyncio.new_event_loop().close(), os.environ.get('QUERY_STRING'))

os.environ['LEFT'] = 'behind'
os.environ['TZ'] = 'America/New_York'
time.tzset()
os.chdir('/')
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGALRM, signal.SIGPIPE):
    signal.signal(number, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
signal.alarm(1000)
locale.setlocale(locale.LC_ALL, 'C')
decimal.getcontext().prec = 3
socket.setdefaulttimeout(7)
sys.setrecursionlimit(500)
sys.excepthook = sys.displayhook = print
logging.basicConfig(stream=sys.stdout, level=logging.DEBUG, format='%(message)s')
logging.getLogger('own').addHandler(logging.StreamHandler(sys.stderr))
logging.info('logged to the client')
warnings.simplefilter('ignore')
warnings.showwarning = threading.excepthook = print
gc.disable()
builtins.len = lambda _: 'changed'
sys.argv.append('LEFT')
sys.dont_write_bytecode = True
asyncio.set_event_loop(asyncio.new_event_loop())
asyncio.get_event_loop().close()
