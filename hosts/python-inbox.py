# The receiver of requests, for both Python hosts. Forebay appends it to their files, which have the
# imports.


# Lengths of the environment block and of the body, and the mark, which begin each request.
unpack_head = struct.Struct('>IQ16s').unpack_from


class Inbox:
    def __init__(self):
        self.control, self.prefetch = os.dup(0), os.dup(3)
        os.close(3)
        self.input = select.poll()
        for descriptor in self.control, self.prefetch:
            self.input.register(descriptor, select.POLLIN)
        self.mark = b''        # mark of the request; the end marker repeats it
        self.was_prefetched = 0     # flag if the request was prefetched, or 0

    def ready(self):
        os.write(self.control, b'R\0\0\0')

    def receive(self):
        """Returns the next request: environment block, length of the body, received part of the
        body. Returns None at the end."""
        # Under load a request is already in the queue. While a request is on the control socket,
        # Forebay puts no other request into the queue.
        try:
            message = os.read(self.prefetch, CHUNK)
            self.was_prefetched = LAY_THERE
        except BlockingIOError:
            self.was_prefetched = 0
            message = self.next()
        if not message:
            return None
        block, length, self.mark = unpack_head(message)
        end = HEAD + block
        while len(message) < end:
            more = self.read(CHUNK)
            if not more:
                return None
            message += more
        return message[HEAD:end], length, message[end:]

    def next(self):
        """Waits for a request. Returns it from the prefetch queue, or its start from the control
        socket. Returns nothing at the end."""
        if self.mark:
            self.say_waiting()
        while True:
            for descriptor, _ in self.input.poll():
                if descriptor == self.control:
                    message = self.read(HEAD)
                    while message and len(message) < HEAD:
                        message += self.read(HEAD - len(message)) or os._exit(0)
                    return message
                try:
                    return os.read(self.prefetch, CHUNK)
                except BlockingIOError:
                    pass    # Forebay has taken the request back

    def say_waiting(self):
        """Tells Forebay that output is waiting. Output alone does not wake Forebay, so that it
        wakes once for several replies."""
        try:
            os.write(self.control, b'W\0\0\0')
        except OSError:
            pass    # other calls detect that Forebay has ended

    def read(self, size):
        """Reads from the control socket. Returns nothing at its end, also if Forebay closed it with
        unread data."""
        try:
            return os.read(self.control, size)
        except ConnectionResetError:
            return b''

    def end_marker(self, kind, is_last, status):
        """Returns the end marker, which follows the output of the request."""
        if kind == b'E' and not is_last:
            return self.mark + (b'E\4\0\0' if self.was_prefetched else b'E\0\0\0')
        flags = bytes([self.was_prefetched | is_last])
        return self.mark + kind + flags + status.to_bytes(2, 'big')

    def close(self):
        os.close(self.control)
        os.close(self.prefetch)
