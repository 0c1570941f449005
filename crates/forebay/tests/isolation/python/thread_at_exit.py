#!/usr/bin/python3
# A thread that begins when all others have been waited for.
import atexit, _thread, os, time
nonce = os.environ['QUERY_STRING']
# Arguments, because the variables of the script end with it.
def late(sleep, write, text):
    sleep(0.05)
    write(1, text)
print('Content-Type: text/plain\n\nbegun <%s>' % nonce, flush=True)
late_text = b'late <%s>\n' % nonce.encode()
atexit.register(_thread.start_new_thread, late, (time.sleep, os.write, late_text))
