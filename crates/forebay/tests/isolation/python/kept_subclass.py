#!/usr/bin/python3
# An object of the script's own class, in a cycle, uses a buffer that an earlier request kept.
import io, os
import keeper
class Kept(io.TextIOWrapper):
    pass
nonce = os.environ['QUERY_STRING']
print('Content-Type: text/plain\n\nbegun <%s>' % nonce)
if not getattr(keeper, 'buffer', None):
    keeper.buffer = io.open(1, 'wb', closefd=False)
keeper.buffer.write(b'buffer <%s>\n' % nonce.encode())
keeper.over = Kept(keeper.buffer)
keeper.over.itself = keeper.over
keeper.over.write('over <%s>\n' % nonce)
