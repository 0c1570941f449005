#!/usr/bin/python3
# Starts a thread after the interpreter has waited for all others.
import atexit, _thread, os, time
nonce = os.environ['QUERY_STRING']
# Uses only arguments, because the script's variables end with the script.
def late(sleep, write, text):
    sleep(0.05)
    write(1, text)
print('Content-Type: text/plain\n\nbegun <%s>' % nonce, flush=True)
late_text = b'late <%s>\n' % nonce.encode()
atexit.register(_thread.start_new_thread, late, (time.sleep, os.write, late_text))
