#!/usr/bin/python3
import threading
import time
print('Content-Type: text/plain\n')
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
print('a daemon is left')
