#!/usr/bin/python3
# A class of the script's own, in a cycle, made over a buffer that was kept by an earlier request.
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
