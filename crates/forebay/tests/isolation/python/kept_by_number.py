#!/usr/bin/python3
# Makes files over descriptor 1 itself in each request, and keeps them.
import os, sys
import keeper
nonce = os.environ['QUERY_STRING']
print('Content-Type: text/plain\n\nbegun <%s>' % nonce)
del keeper.kept[:-4]
keeper.kept.append(open(sys.stdout.fileno(), 'w', closefd=False))
keeper.kept.append(open(1, 'wb', closefd=False))
for file in keeper.kept:
    try:
        file.write('kept <%s>\n' % nonce)
    except TypeError:
        file.write(b'kept <%s>\n' % nonce.encode())
    except AttributeError:
        pass
