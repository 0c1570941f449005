#!/usr/bin/python3
# Log handlers that write to the client. A logger outside the tree of loggers keeps one of them.
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
