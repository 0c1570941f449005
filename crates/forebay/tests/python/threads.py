#!/usr/bin/python3
import concurrent.futures
import threading
import time
print('Content-Type: text/plain\n')
ended = threading.Event()


def late():
    ended.wait(5)
    time.sleep(0.01)
    print('from a thread, after the end')


threading.Thread(target=late).start()
pool = concurrent.futures.ThreadPoolExecutor(1)
print(pool.submit(lambda: 'pooled').result())
print(threading.current_thread().name, threading.current_thread() is threading.main_thread())
ended.set()
