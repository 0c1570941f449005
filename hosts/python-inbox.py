# Where requests come in, for both hosts in Python: handed over behind their files, which have the imports.


class Inbox:
    def __init__(self):
        self.control, self.prefetch = os.dup(0), os.dup(3)
        os.close(3)
        self.input = select.poll()
        for descriptor in self.control, self.prefetch:
            self.input.register(descriptor, select.POLLIN)
        self.mark = b''        # of the request, to be repeated at its end
        self.was_prefetched = 0     # the request was not waited for: a flag

    def ready(self):
        os.write(self.control, b'R\0\0\0')

    def receive(self):
        """The next request: environment block, length of the body, what came of that. None at the end."""
        message = self.next()
        if message is None:
            return None
        want = HEAD + int.from_bytes(message[:4], 'big')
        while len(message) < want:
            more = self.read(CHUNK)
            if not more:
                return None
            message += more
        self.mark = message[12:HEAD]
        return message[HEAD:want], int.from_bytes(message[4:12], 'big'), message[want:]

    def next(self):
        """A request from the prefetch queue, or the start of one from the control socket. None at the end."""
        # Under load it lies there already.
        ready = self.input.poll(0)
        self.was_prefetched = LAY_THERE if ready else 0
        if not ready and self.mark:
            self.say_waiting()
        while True:
            for descriptor, _ in ready or self.input.poll():
                if descriptor == self.control:
                    self.was_prefetched = 0
                    message = self.read(HEAD)
                    while message and len(message) < HEAD:
                        message += self.read(HEAD - len(message)) or os._exit(0)
                    return message or None
                try:
                    return os.read(self.prefetch, CHUNK) or None
                except BlockingIOError:    # Forebay has taken it back
                    if ready and self.mark:
                        self.say_waiting()
                    ready, self.was_prefetched = [], 0

    def say_waiting(self):
        """Output does not wake Forebay, so that replies to several requests wake it once."""
        try:
            os.write(self.control, b'W\0\0\0')
        except OSError:
            pass    # whether Forebay is there is seen elsewhere

    def read(self, size):
        """What comes on the control socket; nothing at its end, also where Forebay has not heard all."""
        try:
            return os.read(self.control, size)
        except ConnectionResetError:
            return b''

    def end_marker(self, kind, is_last, status):
        """What tells the end of the request, behind its output."""
        flags = bytes([self.was_prefetched | is_last])
        return self.mark + kind + flags + status.to_bytes(2, 'big')

    def close(self):
        os.close(self.control)
        os.close(self.prefetch)
