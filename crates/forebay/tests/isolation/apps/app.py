# The victim and the attacks of a WSGI application: the path names one.
import os
import subprocess
import threading
import time

PLAIN = [('Content-Type', 'text/plain')]
kept = []


def victim(nonce, start_response):
    start_response('200 OK', PLAIN)
    return [b'victim <%s>\n' % nonce]


def kept_write(nonce, start_response):
    """Writes with the `write` of an earlier request."""
    for write in kept:
        try:
            write(b'kept <%s>\n' % nonce)
        except AssertionError:
            pass
    kept[:] = [start_response('200 OK', PLAIN)]
    kept[0](b'begun <%s>\n' % nonce)
    return []


def kept_iterator(nonce, start_response):
    """Continues the iterator of an earlier request."""
    def pieces():
        yield b'begun <%s>\n' % nonce
        yield b'more <%s>\n' % nonce
    for iterator in kept[:1]:
        if not callable(iterator):
            list(iterator)
    start_response('200 OK', PLAIN)
    kept[:] = [pieces()]
    return kept[0]


def late_thread(nonce, start_response):
    write = start_response('200 OK', PLAIN)

    def late():
        time.sleep(0.02)
        write(b'late <%s>\n' % nonce)
    threading.Thread(target=late, daemon=True).start()
    return [b'begun <%s>\n' % nonce]


def thread_with_much(nonce, start_response):
    """A thread is inside a long write when the application returns."""
    write = start_response('200 OK', PLAIN)
    write(b'begun <%s>\n' % nonce)
    threading.Thread(target=write, args=(b'late <%s>\n' % nonce * 20000,), daemon=True).start()
    time.sleep(0.002)
    return []


def child(nonce, start_response):
    """A child writes to all descriptors that may be the client's."""
    start_response('200 OK', PLAIN)
    if os.fork() == 0:
        time.sleep(0.02)
        for descriptor in range(64):
            try:
                if descriptor != 2:
                    os.write(descriptor, b'late <%s>\n' % nonce)
            except OSError:
                pass
        os._exit(0)
    return [b'begun <%s>\n' % nonce]


def child_replies(nonce, start_response):
    """A child continues the reply as if it were the worker."""
    start_response('200 OK', PLAIN)
    if os.fork() == 0:
        time.sleep(0.02)
    return [b'begun <%s>\n' % nonce]


def background_job(nonce, start_response):
    start_response('200 OK', PLAIN)
    subprocess.Popen(['sh', '-c', r'sleep 0.05; printf "late <%s>\n" ' + nonce.decode()])
    return [b'begun <%s>\n' % nonce]


def raises(nonce, start_response):
    start_response('200 OK', PLAIN)
    raise ValueError('for a reason')


def killed(nonce, start_response):
    os.kill(os.getpid(), 9)


def application(environ, start_response):
    attack = globals()[environ['PATH_INFO'].rpartition('/')[2]]
    return attack(environ['QUERY_STRING'].encode(), start_response)
