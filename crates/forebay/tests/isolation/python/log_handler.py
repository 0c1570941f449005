#!/usr/bin/python3
# A handler of logging that writes to the client, one of which a logger outside of the tree keeps.
import logging, os, sys
import keeper
nonce = os.environ['QUERY_STRING']
print('Content-Type: text/plain\n\nbegun <%s>' % nonce, flush=True)
keeper.logger = logging.Logger('own')
keeper.logger.addHandler(logging.StreamHandler(os.fdopen(os.dup(1), 'w')))
logging.getLogger('tree').addHandler(logging.StreamHandler(sys.stdout))
for logger in keeper.logger, logging.getLogger('tree'):
    logger.warning('logged <%s>', nonce)
keeper.logger.handlers[0].stream.write('kept <%s>\n' % nonce)
