#!/usr/bin/python3
# Leaves timers in the worker, some with handlers.
import os, signal
nonce = os.environ['QUERY_STRING']
print('Content-Type: text/plain\n\nbegun <%s>' % nonce, flush=True)
signal.signal(signal.SIGALRM, lambda *_: os.write(1, b'rung <%s>\n' % nonce.encode()))
signal.signal(signal.SIGVTALRM, signal.SIG_IGN)
signal.signal(signal.SIGPROF, signal.SIG_IGN)
signal.setitimer(signal.ITIMER_REAL, 0.02)
signal.setitimer(signal.ITIMER_VIRTUAL, 0.005, 0.005)
signal.setitimer(signal.ITIMER_PROF, 0.005, 0.005)
