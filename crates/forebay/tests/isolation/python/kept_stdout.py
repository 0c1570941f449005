#!/usr/bin/python3
# The module keeps sys.stdout, its buffer and a redirection that is not undone.
import contextlib, os, sys
import keeper
nonce = os.environ['QUERY_STRING']
print('Content-Type: text/plain\n\nbegun <%s>' % nonce)
keeper.stdout = getattr(keeper, 'stdout', sys.stdout)
keeper.redirected = contextlib.redirect_stdout(keeper.stdout)
keeper.redirected.__enter__()
try:
    print('kept <%s>' % nonce)
    keeper.detached = sys.stdout.detach()
    keeper.detached.write(b'detached <%s>\n' % nonce.encode())
except ValueError:
    keeper.stdout = sys.__stdout__
